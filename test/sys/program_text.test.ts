// Tests that a process's machine code is unmapped, and that it goes on.
import { expect, test } from "bun:test";
import { readFileSync, readlinkSync } from "node:fs";
import { codeOf, unmapProgramText } from "../../src/sys/program_text.ts";

const program = readlinkSync("/proc/self/exe");

test("the code of a program is its executable mapping alone", () => {
  const maps = `00200000-01a39000 r--p 00000000 fe:00 53     /opt/a program
01a39000-06848000 r-xp 01838000 fe:00 53                   /opt/a program
0684a000-0685f000 rw-p 06641000 fe:00 53                   /opt/a program
7f1c2c000000-7f1c2c021000 rwxp 00000000 00:00 0
7f1c30000000-7f1c30155000 r-xp 00026000 fe:00 9             /usr/lib/libc.so.6
`;
  const bytes = 0x6848000n - 0x1a39000n;
  expect(codeOf(maps, "/opt/a program")).toEqual([{ address: 0x1a39000n, bytes }]);
});

/** KiB of this program's code that are mapped now. */
function mappedKib(): number {
  const all = readFileSync("/proc/self/smaps", "utf8").split(/^(?=[0-9a-f]+-[0-9a-f]+ )/m);
  const code = all.filter(
    (one) => / r-xp .* \/\S+$/m.test(one.split("\n")[0]!) && one.includes(program),
  );
  return code.reduce((sum, one) => sum + Number(/^Rss: +(\d+) kB/m.exec(one)![1]), 0);
}

test("code that does not run is not mapped afterwards", () => {
  const before = mappedKib();
  unmapProgramText();
  const after = mappedKib();
  expect(before).toBeGreaterThan(10_000);
  expect(after).toBeLessThan(before * 0.8);
});
