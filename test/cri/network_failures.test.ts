// Tests CNI plugins that fail, hang or crash, once or for a day: no address or other resource leaks.
import { beforeEach, describe, expect, test } from "bun:test";
import { execFileSync, spawnSync } from "node:child_process";
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { runtime } from "../../src/proto/messages.js";
import { failure, until } from "../expect.ts";
import { recordFile } from "../records.ts";
import { executable } from "../harness.ts";
import { wholeLines } from "../whole_lines.ts";
import {
  bridge,
  configure,
  daemon,
  files,
  leases,
  networkReady,
  portmap,
  settings,
  useNetworks,
  writeList,
  writePlugin,
} from "./network_fixture.ts";

useNetworks();

describe("plugins that fail", () => {
  const mark = (name: string) => join(daemon.dir, name);

  test("the second one in ADD and then in DEL too: the first one's address is still released", async () => {
    // containerd's #12130: with the ADD never completed its failed DEL is forgotten, and the lease stays.
    const fails = `[ $CNI_COMMAND = ADD ] && { echo broken cable >&2; exit 1; }
[ ! -e ${mark("del-fails")} ] || { echo still broken >&2; exit 1; }`;
    writeList("chain", [bridge(["4"]), writePlugin("fails", fails)]);
    await configure({});
    writeFileSync(mark("del-fails"), "");
    const before = daemon.snapshot();
    const error = await failure(daemon.runPod(daemon.podConfig()));
    expect(error.message).toContain("broken cable");
    expect(leases()).toHaveLength(1);
    const { items } = await daemon.client.ListPodSandbox({});
    expect(items.map(({ state }) => state)).toEqual([1]);
    rmSync(mark("del-fails"));
    await daemon.restart("SIGKILL"); // tried again at the start, and every minute
    await until("the lease is free", () => leases().length === 0);
    const pods = async () => (await daemon.client.ListPodSandbox({})).items;
    await until("the pod is gone", async () => (await pods()).length === 0);
    const left = await daemon.leaksSince(before);
    expect(left.filter((leak) => !leak.startsWith("descriptor"))).toEqual([]); // another process's
    expect(files("graph/cni/results")).toEqual([]);
  });

  test("a list that gives no address: the pod is refused, not READY without one, and nothing stays", async () => {
    const result = '{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","sandbox":"x"}]}';
    const script = `echo $CNI_COMMAND >> ${mark("silent")}; [ $CNI_COMMAND != ADD ] || { echo '${result}'; exit 0; }`;
    writeList("silent", [writePlugin("silent", script)]);
    await configure({});
    const before = daemon.snapshot();
    const error = await failure(daemon.runPod(daemon.podConfig()));
    expect(error.code).toBe("FAILED_PRECONDITION");
    expect(error.message).toMatch(/^CNI network \S*silent gave sandbox \w+ no address on eth0: /);
    expect((await daemon.client.ListPodSandbox({})).items).toEqual([]);
    expect(readFileSync(mark("silent"), "utf8")).toContain("ADD\nDEL\n");
    expect(await daemon.leaksSince(before)).toEqual([]);
  });

  test("a plugin that is not installed: nothing is attached, one line tells it, and nothing stays", async () => {
    writeList("chain", [bridge(["4"]), { type: "absent" }]);
    await configure({});
    const before = daemon.snapshot();
    const logged = daemon.log.length;
    const error = await failure(daemon.runPod(daemon.podConfig()));
    expect(error.message).toMatch(/^CNI plugin absent of network \S+chain was not found in /);
    expect(daemon.log.slice(logged).match(/(WARN|ERROR).*absent/g)).toHaveLength(1);
    expect((await daemon.client.ListPodSandbox({})).items).toEqual([]);
    expect(await daemon.leaksSince(before)).toEqual([]);
  });

  test("for a day: DEL is abandoned with a log message, and the pod can be removed", async () => {
    const fails = `[ $CNI_COMMAND != DEL ] || { echo gone for good >&2; exit 1; }`;
    writeList("chain", [writePlugin("fails", fails)]);
    await configure({});
    const podId = await daemon.runPod(daemon.podConfig());
    const stop = () => daemon.client.StopPodSandbox({ pod_sandbox_id: podId });
    expect((await failure(stop())).message).toContain("gone for good");
    const failing = join(daemon.dir, "graph/cni/failing", podId);
    const dayMs = 24 * 60 * 60_000;
    const set = (failedForMs: number) => {
      const now = JSON.parse(readFileSync(failing, "utf8")) as object;
      writeFileSync(failing, JSON.stringify({ ...now, failedForMs }));
    };
    set(dayMs - 60_000);
    expect((await failure(stop())).message).toContain("gone for good");
    set(dayMs);
    await stop();
    expect(daemon.log).toContain("CNI DEL abandoned");
    expect(files("graph/cni/given-up").join()).toContain(podId);
    expect(existsSync(failing)).toBe(false);
    await daemon.removePod(podId);
  });

  test("DEL for good: its error names rmp --abandon-network, which removes the pod and keeps what it was", async () => {
    const fails = `[ $CNI_COMMAND != DEL ] || [ -e ${mark("mended")} ] || { echo gone for good >&2; exit 1; }`;
    writeList("chain", [writePlugin("fails", fails)]);
    await configure({});
    const [stuck, mended] = [
      await daemon.runPod(daemon.podConfig()),
      await daemon.runPod(daemon.podConfig()),
    ];
    const request = { pod_sandbox_id: stuck };
    // Nothing has failed yet: a network that can be released is not given up.
    expect((await failure(daemon.client.AbandonNetwork(request))).code).toBe("FAILED_PRECONDITION");
    const { message } = await failure(daemon.client.StopPodSandbox(request));
    expect(message).toContain(`gone for good`);
    expect(message).toContain(`isulad-ts rmp --abandon-network ${stuck}`);
    const rmp = (...args: string[]) =>
      spawnSync(executable, ["rmp", "--host", daemon.socket, ...args], { encoding: "utf8" });
    expect(rmp(stuck)).toMatchObject({ status: 1, stdout: "" });
    expect(rmp("--abandon-network", stuck)).toMatchObject({
      status: 0,
      stdout: `Removed sandbox ${stuck}\n`,
      stderr: expect.stringContaining("its addresses stay taken") as string,
    });
    expect(files("graph/cni/given-up").join()).toContain(stuck);
    expect(daemon.log).toContain("CNI DEL abandoned");
    writeFileSync(mark("mended"), "");
    expect(rmp("--abandon-network", "--force", mended)).toMatchObject({ status: 0, stderr: "" });
    expect(files("graph/cni/given-up").join()).not.toContain(mended);
  });

  test("a node that was restarted: DEL without the namespace frees the addresses without a call", async () => {
    writeList("plain", [bridge(["4"])]);
    await configure({});
    const podId = await daemon.runPod(daemon.podConfig());
    expect(leases()).toHaveLength(1);
    await daemon.stop();
    const newest = recordFile(daemon.dir, "sandbox", podId);
    const json = JSON.parse(readFileSync(newest, "utf8")) as object;
    writeFileSync(newest, JSON.stringify({ ...json, bootId: "another boot" }));
    execFileSync("umount", [
      (json as { networkSettings: { SandboxKey: string } }).networkSettings.SandboxKey,
    ]);
    await daemon.start();
    await until("the lease is free", () => leases().length === 0);
    const { status } = await daemon.client.PodSandboxStatus({ pod_sandbox_id: podId });
    expect(status?.state).toBe(runtime.v1.PodSandboxState.SANDBOX_NOTREADY);
    await daemon.removePod(podId);
  });
});

test("a RunPodSandbox that is cancelled while a plugin writes its lease leaves none", async () => {
  // As host-local does it: the file first, then whose it is; DEL looks for the pod's own.
  const folder = join(daemon.dir, "own-leases");
  mkdirSync(folder);
  const go = join(daemon.dir, "go");
  const leasing = `cd ${folder}
case $CNI_COMMAND in
ADD) : > 10.0.0.2; until [ -e ${go} ]; do sleep 0.1; done; echo $CNI_CONTAINERID > 10.0.0.2 ;;
DEL) for one in *; do grep -qs $CNI_CONTAINERID $one && rm $one; done ;;
esac`;
  writeList("slow", [writePlugin("slow", leasing)]);
  await configure({});
  const before = daemon.snapshot();
  const request = { config: daemon.podConfig(), runtime_handler: "" };
  const cancel = new AbortController();
  const call = failure(daemon.client.RunPodSandbox(request, { signal: cancel.signal }));
  await until("the plugin has begun", () => readdirSync(folder).length > 0);
  cancel.abort();
  expect((await call).code).toBe("CANCELLED");
  // The client gets its response at once; the plugin finishes in the background.
  writeFileSync(go, "");
  const isUndone = () => {
    const left = [readdirSync(folder), files("graph/cni/results"), files("graph/sandboxes")];
    return left.flat().length === 0;
  };
  await until("the pod is undone", isUndone);
  expect(await daemon.leaksSince(before)).toEqual([]);
  // The daemon's end cancels calls too, after a second.
  rmSync(go);
  const cut = daemon.client.RunPodSandbox(request).catch(() => {});
  await until("the plugin has begun", () => readdirSync(folder).length > 0);
  const restarted = daemon.restart();
  await cut;
  writeFileSync(go, "");
  await restarted;
  await until("the next daemon has undone it", isUndone);
});

describe("kill -9 of the daemon", () => {
  /** Starts it so that it dies at a step, does what leads there, and starts it again. */
  async function killedAt(failpoint: string, act: () => Promise<unknown>): Promise<void> {
    await daemon.restart("SIGTERM", `${failpoint}=kill`);
    await failure(act());
    await daemon.restart();
  }

  const list = async () => (await daemon.client.ListPodSandbox({})).items;
  const ready = runtime.v1.PodSandboxState.SANDBOX_READY;

  beforeEach(async () => {
    writeList("plain", [bridge(["4"]), portmap]);
    await configure({});
  });

  test.each(
    ["sandbox-record", "sandbox-namespaces", "cni-add", "sandbox-sysctls", "sandbox-ready"].flatMap(
      (step) => [`before:${step}`, `after:${step}`],
    ),
  )("in RunPodSandbox, %s: the pod is whole, or nothing of it is left", async (failpoint) => {
    await killedAt(failpoint, () => daemon.runPod(daemon.podConfig()));
    const isReady = async () => (await list()).every(({ state }) => state === ready);
    await until("the pod is ready or gone", isReady);
    const pods = await list();
    expect(pods).toHaveLength(failpoint === "after:sandbox-ready" ? 1 : 0);
    for (const { id } of pods) {
      const { IPAddress, Activation, Networks, SandboxKey } = await settings(id!);
      expect({ Activation, leases: leases() }).toEqual({
        Activation: true,
        leases: [IPAddress as string],
      });
      expect(Object.keys(Networks)).toEqual([`${daemon.token}-plain`]);
      expect(existsSync(SandboxKey as string)).toBe(true);
      await daemon.removePod(id!);
    }
    await until("no address is leased", () => leases().length === 0);
  });

  test.each(
    ["cni-del", "namespaces-unpin", "sandbox-torndown"].flatMap((step) => [
      `before:${step}`,
      `after:${step}`,
    ]),
  )("in StopPodSandbox, %s: what there was is known, and goes unasked", async (failpoint) => {
    const podId = await daemon.runPod(daemon.podConfig());
    const { Activation: _, ...before } = await settings(podId);
    await killedAt(failpoint, () => daemon.client.StopPodSandbox({ pod_sandbox_id: podId }));
    expect(await settings(podId)).toMatchObject(before);
    await until("it is detached", async () => (await settings(podId))["Activation"] === false);
    expect(await settings(podId)).toEqual({ ...before, Activation: false });
    expect(leases()).toEqual([]);
    await daemon.removePod(podId);
  });
});

describe("CNI 1.1", () => {
  test("NetworkReady follows the plugins' STATUS; a plugin without STATUS counts as ready", async () => {
    const mark = join(daemon.dir, "unfit");
    const status = `[ $CNI_COMMAND = STATUS ] && [ -e ${mark} ] &&
{ echo '{"cniVersion":"1.1.0","code":50,"msg":"the switch is off"}'; exit 1; }`;
    const old = `[ $CNI_COMMAND = STATUS ] &&
{ echo '{"cniVersion":"1.1.0","code":4,"msg":"unknown CNI_COMMAND: STATUS"}'; exit 1; }`;
    writeList("eleven", [writePlugin("fit", status), writePlugin("old", old)], {
      cniVersion: "1.1.0",
    });
    await configure({});
    expect(await networkReady()).toEqual({ status: true, message: "" });
    writeFileSync(mark, "");
    await until("the network is not ready", async () => !(await networkReady()).status);
    expect((await networkReady()).message).toContain("switch is off");
    rmSync(mark);
    await until("the network is ready", async () => (await networkReady()).status);
  });

  test("GC runs at the start with the attachments of the pods there are", async () => {
    const told = join(daemon.dir, "gc-told");
    const plugin = writePlugin("keeper", `[ $CNI_COMMAND != GC ] || echo "$input" > ${told}`);
    writeList("eleven", [plugin], { cniVersion: "1.1.0" });
    await configure({});
    await until("GC has run", () => wholeLines(told).length > 0);
    const podId = await daemon.runPod(daemon.podConfig());
    rmSync(told);
    await daemon.restart("SIGKILL");
    await until("GC has run", () => wholeLines(told).length > 0);
    expect(JSON.parse(wholeLines(told).join("\n"))).toMatchObject({
      name: `${daemon.token}-eleven`,
      cniVersion: "1.1.0",
      "cni.dev/valid-attachments": [{ containerID: podId, ifname: "eth0" }],
    });
    await daemon.removePod(podId);
  });

  test("GC is postponed while a pod's cache file is missing, and frees nothing of that pod", async () => {
    const told = join(daemon.dir, "gc-told");
    const plugin = writePlugin("keeper", `[ $CNI_COMMAND != GC ] || echo "$input" > ${told}`);
    writeList("eleven", [plugin], { cniVersion: "1.1.0" });
    await configure({});
    const podIds = [
      await daemon.runPod(daemon.podConfig()),
      await daemon.runPod(daemon.podConfig()),
    ];
    await until("GC has run", () => wholeLines(told).length > 0);
    await daemon.stop();
    rmSync(told, { force: true });
    const results = join(daemon.dir, "graph/cni/results");
    const [lost, emptied] = podIds.map((id) => join(results, `${daemon.token}-eleven-${id}-eth0`));
    rmSync(lost!);
    writeFileSync(emptied!, "");
    const logged = daemon.log.length;
    await daemon.start();
    await until("it is postponed", () => daemon.log.slice(logged).includes("CNI GC postponed"));
    expect(existsSync(told)).toBe(false);
    await until("it is written again, from the record", () => existsSync(lost!));
    await daemon.restart();
    await until("GC has run", () => wholeLines(told).length > 0);
    const input = JSON.parse(wholeLines(told).join("\n")) as Record<
      string,
      { containerID: string }[]
    >;
    const valid = input["cni.dev/valid-attachments"]!.map(({ containerID }) => containerID);
    expect(valid.toSorted()).toEqual(podIds.toSorted());
    for (const id of podIds) await daemon.removePod(id);
  });
});
