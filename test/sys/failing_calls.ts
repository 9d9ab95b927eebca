// Runs calls that fail, the first ones of this process, in a chroot (the folder that is given), and prints
// the errors that differ from the kernel's. libc.test.ts starts it.
import { check, z } from "../../src/sys/libc.ts";
import { chroot } from "../../src/sys/path.ts";

chroot(process.argv[2]!);
const value = new Uint8Array(64);
for (let i = 0; i < 20; i++) {
  try {
    check("lgetxattr", "/", z("/"), z("trusted.none"), value, value.length);
    console.log("it did not fail");
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    if (code !== "ENODATA") console.log(code);
  }
}
