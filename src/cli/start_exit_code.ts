// The exit code of run and exec where the command in the container did not start.

/** Exit codes as docker's: ours, "cannot be run", "not found"; all others are the container's. */
export const ourFailureCode = 125;
const cannotRunCode = 126;
const notFoundCode = 127;

/** runc and crun tell by their messages alone why a command did not start. */
export function startFailureCode(message: string): number {
  if (/executable file.*not found|exec.*no such file or directory/i.test(message)) {
    return notFoundCode;
  }
  return /exec.*(permission denied|exec format error)/i.test(message)
    ? cannotRunCode
    : ourFailureCode;
}
