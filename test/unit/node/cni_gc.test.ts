// Tests which attachments CNI GC may collect, and that it waits until no command runs.
import { expect, test } from "bun:test";
import { attachmentsOf, type CniAttachment } from "../../../src/node/cni_cache.ts";
import { missingAttachments, whenIdle } from "../../../src/node/cni_gc.ts";
import { Gate } from "../../../src/base/gate.ts";
import { failure } from "../../expect.ts";

function attachment(name: string, ip?: string): CniAttachment {
  const confList = { name, cniVersion: "1.0.0", plugins: [{ type: "x" }] };
  const attempt = { confList, ifName: "eth0", args: [], capabilityArgs: {} };
  if (ip === undefined) return { ...attempt, ips: [] };
  return { ...attempt, result: { cniVersion: "1.0.0", ips: [{ address: `${ip}/8` }] }, ips: [ip] };
}

const key = (network: string, id: string) => ({ network, id, ifName: "eth0" });
const pod = (recorded: unknown[]) => ({ id: "p", netnsPath: "/n", recorded });

test.each<[string, unknown[], ReturnType<typeof key>[], string[], string[]]>([
  ["a pod without attachments", [], [], [], []],
  ["a cached attachment", [attachment("a")], [key("a", "p")], [], []],
  ["a lost cache file", [attachment("a"), attachment("b")], [key("a", "p")], ["b"], []],
  ["another pod's cache file", [attachment("a")], [key("a", "q")], ["a"], []],
  ["an unreadable record", [{}], [], [], ["p"]],
  ["an unreadable record with a cache file", [{}], [key("a", "p")], [], []],
])("missingAttachments() of %s", (_, recorded, cached, networks, unreadable) => {
  const found = missingAttachments([pod(recorded)], cached);
  expect(found.missing.map(({ attachment: one }) => one.confList.name)).toEqual(networks);
  expect(found.unreadable).toEqual(unreadable);
});

test.each<[string, unknown[], CniAttachment[], string[]]>([
  [
    "a record with a result wins",
    [attachment("a", "10.0.0.1")],
    [attachment("a", "10.0.0.2")],
    ["10.0.0.1"],
  ],
  [
    "a cached result completes a record",
    [attachment("a")],
    [attachment("a", "10.0.0.2")],
    ["10.0.0.2"],
  ],
  ["an unreadable record counts for nothing", [{}], [attachment("a", "10.0.0.2")], ["10.0.0.2"]],
  [
    "networks of both are kept",
    [attachment("a", "10.0.0.1")],
    [attachment("b", "10.0.0.2")],
    ["10.0.0.1", "10.0.0.2"],
  ],
])("attachmentsOf(): %s", (_, recorded, cached, ips) => {
  expect(attachmentsOf(recorded, cached).flatMap((one) => one.ips)).toEqual(ips);
});

test("whenIdle() closes a gate only while nobody is inside", async () => {
  const gate = new Gate("a GC");
  const signal = AbortSignal.timeout(5_000);
  const shares = [await gate.enter(signal), await gate.enter(signal)];
  expect(await whenIdle(gate, 30)).toBeUndefined();
  shares[0]![Symbol.dispose]();
  expect(await whenIdle(gate, 30)).toBeUndefined();
  shares[1]![Symbol.dispose]();
  const exclusive = await whenIdle(gate, 1_000);
  expect(exclusive).toBeDefined();
  expect(await whenIdle(gate, 30)).toBeUndefined();
  expect(await failure(gate.enter(AbortSignal.timeout(10)))).toMatchObject({
    code: "DEADLINE_EXCEEDED",
  });
  const waiting = gate.enter(signal);
  exclusive![Symbol.dispose]();
  using _ = await waiting;
});
