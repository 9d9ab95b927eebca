// Tests the machines of the test cluster: whoever knew one before its reboot reaches it at once.
import { afterAll, expect, test } from "bun:test";
import { spawnSync } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import process from "node:process";
import { testMs } from "./expect.ts";

const dir = mkdtempSync(join(tmpdir(), "isulad-machine-"));
const names = ["steady", "rebooted"];
afterAll(() => rmSync(dir, { recursive: true, force: true }));

/** Prints the hardware addresses that two machines and the lab's host have, and those that each knows of another. */
const script = `
const { bridge, labAddress, Machine, makeLab, must } = await import("${import.meta.dirname}/cluster_machine.ts");
makeLab();
const [steady, rebooted] = ${JSON.stringify(names)}.map((name, i) => new Machine(name, i, "${dir}/" + name));
await steady.boot([]);
await rebooted.boot([]);
for (const one of [rebooted.address, labAddress]) steady.run("busybox", "ping", "-c1", one);
await rebooted.cut();
await rebooted.boot([]);
const after = (word, text) => text.split(word + " ")[1].split(" ")[0];
console.log(JSON.stringify({
  own: [
    after("ether", rebooted.run("ip", "-o", "link", "show", "eth0")),
    after("ether", must("ip", ["-o", "link", "show", bridge])),
  ],
  known: [rebooted.address, labAddress].map((one) => after("lladdr", steady.run("ip", "neigh", "show", one))),
}));
for (const one of [steady, rebooted]) await one.cut();
process.exit();
`;

test(
  "a machine and the lab's host keep their hardware addresses in a reboot",
  () => {
    const flags = "--net --mount --pid --fork --kill-child --mount-proc --propagation private";
    const argv = [...flags.split(" "), process.execPath, "-e", script];
    const { stdout, stderr } = spawnSync("unshare", argv, { encoding: "utf8" });
    expect(stderr).toBe("");
    const { own, known } = JSON.parse(stdout) as Record<"own" | "known", string[]>;
    expect(known).toEqual(own);
    expect(new Set(own).size).toBe(2);
  },
  testMs(120_000),
);
