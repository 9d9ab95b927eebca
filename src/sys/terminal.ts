// Terminals (tty_ioctl(4)).
import type { Descriptor } from "./descriptor.ts";
import { check } from "./libc.ts";

const TIOCSWINSZ = 0x5414n;

/** Tells a terminal's programs how large it is (SIGWINCH). */
export function setTerminalSize(
  { fd }: Descriptor,
  { columns, rows }: { columns: number; rows: number },
): void {
  const size = new Uint16Array([rows, columns, 0, 0]);
  check("ioctl", "TIOCSWINSZ", fd, TIOCSWINSZ, new Uint8Array(size.buffer));
}
