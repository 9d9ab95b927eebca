// Tests cancelled ADDs, DELs of networks whose ADD failed, and abandoned DELs.
import { expect, setSystemTime, test } from "bun:test";
import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { until } from "../expect.ts";
import {
  ampleMs,
  dir,
  failure,
  openNetwork,
  podOf,
  signal,
  useScratch,
  writeList,
  writePlugin,
} from "./cni_fixture.ts";

useScratch();

test("after a cancellation the running plugin finishes and the next one does not start", async () => {
  const lease = join(dir, "lease");
  const add = `: > ${lease}; sleep 1; echo whole > ${lease}; echo '{"cniVersion":"1.0.0"}'`;
  writePlugin("leases", add);
  writePlugin("next", `touch ${dir}/next`);
  writeList("1.0.0", [{ type: "leases" }, { type: "next" }]);
  const cancel = new AbortController();
  const failed = failure(openNetwork(ampleMs, 1, ampleMs).add(podOf("p1"), cancel.signal));
  await until("it runs", () => existsSync(lease));
  cancel.abort();
  expect(await failed).toMatchObject({ code: "CANCELLED" });
  expect(readFileSync(lease, "utf8")).toBe("whole\n");
  expect(existsSync(join(dir, "next"))).toBe(false);
});

test("a pod whose ADD failed by a wrong list is freed as soon as the list is mended", async () => {
  const invalid = `echo '{"code":999,"msg":"invalid CIDR"}'; exit 1`;
  writePlugin("subnet", `cat | grep -q 10.256 && { ${invalid}; }; echo '{"cniVersion":"1.0.0"}'`);
  writeList("1.0.0", [{ type: "subnet", subnet: "10.256.0.0/16" }]);
  const cni = openNetwork();
  const pod = podOf("p1");
  const plan = cni.plan(pod);
  const refused = { code: "INTERNAL", message: expect.stringContaining("invalid CIDR") as string };
  expect(await failure(cni.add(pod, signal, plan))).toMatchObject(refused);
  expect(await failure(cni.del(pod, plan, signal))).toMatchObject(refused);
  writeList("1.0.0", [{ type: "subnet", subnet: "10.25.0.0/16" }]);
  await cni.del(pod, plan, signal);
  expect(await cni.attached()).toEqual([]);
});

test("setting the wall clock two days ahead does not abandon a failing DEL", async () => {
  writePlugin("gone", "exit 1");
  writeList("1.0.0", [{ type: "gone" }]);
  const cni = openNetwork();
  const attachments = cni.plan(podOf("p1"));
  const del = () => failure(cni.del(podOf("p1"), attachments, signal));
  expect(await del()).toMatchObject({ code: "INTERNAL" });
  try {
    setSystemTime(new Date(Date.now() + 48 * 3_600_000));
    expect(await del()).toMatchObject({ code: "INTERNAL" });
  } finally {
    setSystemTime();
  }
});
