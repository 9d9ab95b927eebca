// The umask of this process, which all of its threads and children share.

export const usualUmask = 0o022;

/** For the whole life of the process, before it makes any file. */
export function setUmask(mask: number): void {
  process.umask(mask);
}

type NotAPromise<T> = T extends PromiseLike<unknown> ? never : unknown;

/** For one synchronous call: across an await it would give other modes to all that is made meanwhile. */
export function withUmask<T>(mask: number, make: () => T & NotAPromise<T>): T {
  const before = process.umask(mask);
  try {
    return make();
  } finally {
    process.umask(before);
  }
}
