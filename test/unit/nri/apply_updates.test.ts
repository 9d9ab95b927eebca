// Tests which updates and evictions of plugins reach containers, and which failures fail the request.
import { expect, test } from "bun:test";
import { CriError } from "../../../src/base/errors.ts";
import { toLong } from "../../../src/base/int64.ts";
import { UpdateApplier } from "../../../src/nri/apply_updates.ts";
import type { ContainerUpdate } from "../../../src/proto/nri_types.ts";
import { failure } from "../../expect.ts";
import { capturedLog } from "../fakes.ts";

const shares = (id: string, more: ContainerUpdate = {}): ContainerUpdate => ({
  container_id: id,
  linux: { resources: { cpu: { shares: { value: toLong(7) } } } },
  ...more,
});

/** Merged updates of these plugins. */
const of = (plugins: string, ...updates: ContainerUpdate[]) => ({
  others: () => updates,
  pluginsOf: () => plugins,
});

/** An applier over containers `live` and `busy`; updates of `busy` and of unknown containers fail. */
function applier() {
  const done: string[] = [];
  const backend = {
    state: () => Promise.resolve({ pods: [], containers: [] }),
    isLive: (id: string) => ["live", "busy"].includes(id),
    update: ({ id, plugin }: { id: string; plugin: string }) => {
      if (id !== "live") return Promise.reject(new CriError("ABORTED", `${id} cannot be updated`));
      done.push(`update ${id} for ${plugin}`);
      return Promise.resolve();
    },
    evict: (id: string, reason: string) => {
      done.push(`evict ${id}: ${reason}`);
      return id === "live" ? Promise.resolve() : Promise.reject(new Error("no such container"));
    },
  };
  const { log, lines } = capturedLog("info");
  return { updates: new UpdateApplier(backend, log), done, lines };
}

test("unsolicited updates are applied one by one, and failed ones are returned", async () => {
  const { updates, done, lines } = applier();
  const update = [shares("busy"), shares("live")];
  const evict = [{ container_id: "live", reason: "noisy" }, { container_id: "other" }];
  const { failed } = await updates.applyUnsolicited("10-a", { update, evict });
  expect(failed).toEqual([update[0]!]);
  expect(done).toEqual(["update live for 10-a", "evict live: noisy", "evict other: "]);
  await Promise.resolve();
  expect(lines.join("")).toMatch(/NRI update failed plugin=10-a container=busy/);
  expect(lines.join("")).toMatch(/NRI eviction failed container=other/);
});

test("an invalid unsolicited update applies nothing", async () => {
  const { updates, done } = applier();
  const update = [shares("live"), shares("")];
  expect((await failure(updates.applyUnsolicited("10-a", { update }))).message).toContain(
    "container_id",
  );
  expect(done).toEqual([]);
});

test("updates of exited containers are dropped, but not of the one being created", () => {
  const { updates, lines } = applier();
  const all = ["live", "exited", "new", "busy"].map((id) => shares(id));
  const kept = updates.withoutStale("10-a", all, "new").map(({ container_id }) => container_id);
  expect(kept).toEqual(["live", "new", "busy"]);
  expect(lines.join("")).toMatch(/NRI update dropped plugin=10-a container=exited .*being created/);
});

test("a failed update fails the request unless it is ignored or the container has exited", async () => {
  const { updates, done } = applier();
  const ignored = [shares("busy", { ignore_failure: true }), shares("no")];
  await updates.applyAll("StopContainer", of("10-a, 20-b", ...ignored));
  const both = of("10-a", shares("live"), shares("busy"), shares("live"));
  expect(await failure(updates.applyAll("UpdateContainer", both))).toMatchObject({
    code: "ABORTED",
    message: "UpdateContainer: update of container busy failed: busy cannot be updated",
  });
  await Promise.resolve();
  expect(done).toEqual(["update live for 10-a"]);
});

test("an update cannot set fields that are fixed after creation", async () => {
  const { updates, done } = applier();
  const memory = { reservation: { value: toLong(5) } };
  const linux = { resources: { memory, blockio_class: { value: "fast" } } };
  const change = of("10-a", { container_id: "live", linux });
  const update = updates.applyAll("UpdateContainer", change);
  expect((await failure(update)).message).toEndWith(
    ": memory.reservation can only be set when a container is created",
  );
  expect(done).toEqual([]);
});

test("classes and devices in an update are ignored, and logged once for each plugin", async () => {
  const { updates, done, lines } = applier();
  const classes = { blockio_class: { value: "fast" }, rdt_class: { value: "gold" } };
  const resources = { cpu: { shares: { value: toLong(7) } }, ...classes, devices: [{}] };
  const update = { container_id: "live", linux: { resources } };
  await updates.applyAll("CreateContainer", of("10-a", update, update));
  expect(await updates.applyUnsolicited("20-b", { update: [update] })).toEqual({ failed: [] });
  expect(done).toEqual(["10-a", "10-a", "20-b"].map((plugin) => `update live for ${plugin}`));
  const fields =
    /ignored.* plugin=(\S+) container=live reason="blockio_class, rdt_class, devices can/;
  expect(lines.map((line) => fields.exec(line)?.[1])).toEqual(["10-a", "20-b"]);
});
