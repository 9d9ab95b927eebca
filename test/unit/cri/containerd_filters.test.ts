// Tests the filters of containerd's lists.
import { expect, test } from "bun:test";
import { containerdFilter } from "../../../src/cri/containerd_filters.ts";

const web = { id: "1", image: "nginx", labels: { app: "web", "io.kubernetes.pod.uid": "a,b" } };
const bare = { id: "2", image: "busybox", labels: {} };

test.each([
  [[], ["1", "2"]],
  [[""], ["1", "2"]],
  [["id==1"], ["1"]],
  [["id!=1"], ["2"]],
  [
    ["id==1", "image==busybox"],
    ["1", "2"],
  ],
  [["id==1,image==busybox"], []],
  [["labels.app"], ["1"]],
  [["labels.app==web"], ["1"]],
  [["labels.app!=web"], ["2"]],
  [['labels."io.kubernetes.pod.uid"=="a,b"'], ["1"]],
  [['labels."io.kubernetes.pod.uid"=="a\\u002cb",id==1'], ["1"]],
  [["labels.toString"], []],
] as [string[], string[]][])("of two containers %j lists %j", (filters, ids) => {
  expect([web, bare].filter(containerdFilter(filters)).map(({ id }) => id)).toEqual(ids);
});

test.each([
  "id~=1",
  "runtime.name==x",
  "id==",
  "id==1,",
  ",id==1",
  'labels."a==b',
  'labels."\\x"==b',
  "id==1 image==x",
])("a filter that cannot be parsed is refused: %s", (filter) => {
  expect(() => containerdFilter([filter])).toThrow("conditions on id, image and labels");
});
