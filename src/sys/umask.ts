// Sets the umask of this process, which all of its threads and children share.

export const usualUmask = 0o022;

/** Sets the umask for good, before the process creates any file. */
export function setUmask(mask: number): void {
  process.umask(mask);
}

type NotAPromise<T> = T extends PromiseLike<unknown> ? never : unknown;

/** Sets the umask for one synchronous call: across an await it would apply to unrelated files. */
export function withUmask<T>(mask: number, make: () => T & NotAPromise<T>): T {
  const before = process.umask(mask);
  try {
    return make();
  } finally {
    process.umask(before);
  }
}
