// Tests list filters: ids, prefixes and labels that select containers and pods.
import { expect, test } from "bun:test";
import { candidates, selectContainers, selectSandboxes } from "../../../src/cri/list_filters.ts";
import { containerRecord, recordStore, sandboxRecord } from "../fakes.ts";

const stores = {
  containers: recordStore([
    containerRecord({ id: "aa", sandboxId: "p1", config: { labels: { app: "web", tier: "1" } } }),
    containerRecord({ id: "ab", sandboxId: "p2", config: { labels: { app: "web" } } }),
    containerRecord({ id: "cc", sandboxId: "p1", config: {} }),
  ]),
  sandboxes: recordStore([
    sandboxRecord({ id: "p1", config: { labels: { app: "web" } } }),
    sandboxRecord({ id: "p2", config: {} }),
  ]),
};

test.each([
  [undefined, ["aa", "ab", "cc"]],
  [{}, ["aa", "ab", "cc"]],
  [{ id: "", pod_sandbox_id: "", label_selector: {} }, ["aa", "ab", "cc"]],
  [{ id: "cc" }, ["cc"]],
  [{ id: "c" }, ["cc"]],
  [{ id: "zz" }, []],
  [{ pod_sandbox_id: "p1" }, ["aa", "cc"]],
  [{ pod_sandbox_id: "unknown" }, []],
  [{ id: "ab", pod_sandbox_id: "p1" }, []],
  [{ label_selector: { app: "web" } }, ["aa", "ab"]],
  [{ label_selector: { app: "web", tier: "1" } }, ["aa"]],
  [{ label_selector: { app: "db" } }, []],
  [{ label_selector: { toString: "" } }, []],
])("the container filter %j selects %j", (filter, ids) => {
  expect(selectContainers(stores, filter).map(({ id }) => id)).toEqual(ids);
});

test.each([
  [undefined, ["p1", "p2"]],
  [{ id: "p2" }, ["p2"]],
  [{ id: "x" }, []],
  [{ label_selector: { app: "web" } }, ["p1"]],
  [{ id: "p2", label_selector: { app: "web" } }, []],
])("the pod filter %j selects %j", (filter, ids) => {
  expect(selectSandboxes(stores, filter).map(({ id }) => id)).toEqual(ids);
});

test("candidates() has all items without a reference, and none for an unknown one", () => {
  expect(candidates(stores.sandboxes, null)).toHaveLength(2);
  expect(candidates(stores.sandboxes, "unknown")).toEqual([]);
});
