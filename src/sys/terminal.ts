// Resizes terminals (tty_ioctl(4)).
import type { Descriptor } from "./descriptor.ts";
import { check } from "./libc.ts";

const TIOCSWINSZ = 0x5414n;

/** Sets a terminal's size; its programs get SIGWINCH. */
export function setTerminalSize(
  { fd }: Descriptor,
  { columns, rows }: { columns: number; rows: number },
): void {
  const size = new Uint16Array([rows, columns, 0, 0]);
  check("ioctl", "TIOCSWINSZ", fd, TIOCSWINSZ, new Uint8Array(size.buffer));
}
