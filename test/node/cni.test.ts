// Tests deadlines, cancellation and locking of CNI commands, with shell scripts as plugins.
import { expect, test } from "bun:test";
import {
  closeSync,
  existsSync,
  mkdirSync,
  openSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { hasEnded } from "../../src/sys/process.ts";
import { until } from "../expect.ts";
import {
  ampleMs,
  calls,
  dir,
  failure,
  input,
  ok,
  openNetwork,
  podOf,
  signal,
  recordingPlugin,
  useScratch,
  writeList,
  writePlugin,
} from "./cni_fixture.ts";

useScratch();

test("a plugin over its deadline is killed with its children and named with pid and time", async () => {
  writePlugin("slow", `sleep 300 & echo $! > ${dir}/child; wait`);
  writeList("1.0.0", [{ type: "slow" }]);
  expect(await failure(openNetwork(4_000).add(podOf("p1"), signal))).toMatchObject({
    code: "DEADLINE_EXCEEDED",
    message: expect.stringMatching(/CNI plugin slow: ADD of sandbox p1: .*pid \d+.* \d+ ms$/),
  });
  const child = Number(readFileSync(join(dir, "child"), "utf8"));
  await until("the child has ended", () => hasEnded(child));
});

test("the deadline is for all plugins of a list together", async () => {
  writePlugin("first", 'sleep 3; cat >/dev/null; echo \'{"cniVersion":"1.0.0"}\'');
  writePlugin("second", "exec sleep 300");
  writeList("1.0.0", [{ type: "first" }, { type: "second" }]);
  const start = performance.now();
  expect(await failure(openNetwork(6_000).add(podOf("p"), signal))).toMatchObject({
    code: "DEADLINE_EXCEEDED",
    message: expect.stringContaining("CNI plugin second"),
  });
  // The time of the first plugin counts for the second one.
  expect(performance.now() - start).toBeWithin(5_900, 8_900);
});

test("a plugin that its installer is still writing (ETXTBSY) is retried", async () => {
  recordingPlugin("one", ok.replace("$V", "1.0.0"));
  writeList("1.0.0", [{ type: "one" }]);
  const fd = openSync(join(dir, "bin/one"), "r+");
  const added = openNetwork().add(podOf("p1"), signal);
  await sleep(150);
  expect(existsSync(join(dir, "calls"))).toBe(false);
  closeSync(fd);
  expect((await added)[0].ips).toEqual(["10.9.0.7"]);
});

test("an ADD that waits for the first one ends when its caller cancels", async () => {
  writePlugin("slow", `touch ${dir}/begun; exec sleep 300`);
  writeList("1.0.0", [{ type: "slow" }]);
  const cni = openNetwork(60_000);
  const cancel = new AbortController();
  const first = failure(cni.add(podOf("p1"), cancel.signal));
  while (!existsSync(join(dir, "begun"))) await sleep(5);
  const start = performance.now();
  expect(await failure(cni.add(podOf("p2"), AbortSignal.timeout(50)))).toMatchObject({
    code: "DEADLINE_EXCEEDED",
  });
  expect(performance.now() - start).toBeLessThan(30_000);
  cancel.abort();
  await first;
});

test("the caller's cancellation ends a plugin that hangs, after a grace period", async () => {
  writePlugin("slow", `touch ${dir}/begun; exec sleep 300`);
  writeList("1.0.0", [{ type: "slow" }]);
  const cancel = new AbortController();
  const failed = failure(openNetwork().add(podOf("p1"), cancel.signal));
  await until("it runs", () => existsSync(join(dir, "begun")));
  const start = performance.now();
  cancel.abort();
  expect(await failed).toMatchObject({ code: "CANCELLED" });
  expect(performance.now() - start).toBeWithin(450, ampleMs / 2);
});

test("concurrent status() calls run one STATUS, and a hanging STATUS delays them only briefly", async () => {
  writePlugin("one", `echo asked >> ${dir}/calls; [ ! -e ${dir}/hang ] || exec sleep 300`);
  writeList("1.1.0", [{ type: "one" }]);
  const cni = openNetwork();
  const all = await Promise.all([cni.status(), cni.status(), cni.status()]);
  expect(all.map(({ ready }) => ready)).toEqual([true, true, true]);
  expect(readFileSync(join(dir, "calls"), "utf8")).toBe("asked\n");
  writeFileSync(join(dir, "hang"), "");
  await sleep(1100);
  const start = performance.now();
  expect((await cni.status()).ready).toBe(true); // what it last said
  expect(performance.now() - start).toBeLessThan(3_000);
});

test("GC waits for a running ADD, ADD waits for GC, and lists with disableGC have none", async () => {
  const gc = `{ echo gc-in; sleep 0.3; echo gc-out; } >> ${dir}/log`;
  const add = `{ echo add-in; sleep 0.3; echo add-out; } >> ${dir}/log; echo '${ok.replace("$V", "1.1.0")}'`;
  writePlugin("one", `input=$(cat); [ $CNI_COMMAND = GC ] && { ${gc}; exit 0; }; ${add}`);
  writeList("1.1.0", [{ type: "one" }]);
  const cni = openNetwork();
  const logged = () => readFileSync(join(dir, "log"), "utf8").trim().split("\n");
  const first = cni.add(podOf("p1"), signal);
  await until("it runs", () => existsSync(join(dir, "log")));
  const collected = cni.collectGarbage(
    () => [],
    () => true,
  );
  await first;
  while (!logged().includes("gc-in")) await sleep(5);
  await cni.add(podOf("p2"), signal);
  expect(await collected).toBe(true);
  expect(logged()).toEqual(["add-in", "add-out", "gc-in", "gc-out", "add-in", "add-out"]);
  rmSync(join(dir, "log"));
  const list = { cniVersion: "1.1.0", name: "pods", disableGC: true, plugins: [{ type: "one" }] };
  writeFileSync(join(dir, "net.d/10-pods.conflist"), JSON.stringify(list));
  expect(
    await cni.collectGarbage(
      () => [],
      () => true,
    ),
  ).toBe(true);
  expect(existsSync(join(dir, "log"))).toBe(false);
});

test("plugins of the folder with the network's name get ADD, and DEL after their files are gone", async () => {
  const result = ok.replace("$V", "1.0.0");
  for (const name of ["first", "second"]) recordingPlugin(name, result);
  writeList("1.0.0", [{ type: "first" }]);
  mkdirSync(join(dir, "net.d/pods"));
  writeFileSync(join(dir, "net.d/pods/50-second.conf"), '{"type":"second","mtu":1400}');
  await openNetwork().add(podOf("p1"), signal);
  expect(input("second.ADD")).toMatchObject({ name: "pods", cniVersion: "1.0.0", mtu: 1400 });
  rmSync(join(dir, "net.d"), { recursive: true });
  await openNetwork().del(podOf("p1"), undefined, signal); // from the cache
  expect(input("second.DEL")).toMatchObject({ name: "pods", mtu: 1400, prevResult: {} });
  expect(calls()).toEqual(["ADD first", "ADD second", "DEL second", "DEL first"]);
});
