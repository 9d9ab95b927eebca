// Tests how ps, pods and images choose.
import { expect, test } from "bun:test";
import { toLong } from "../../../src/base/int64.ts";
import type { Client } from "../../../src/cli/client.ts";
import { labelsOf, listContainers, listImages, listPods } from "../../../src/cli/filters.ts";
import { lookup } from "../../../src/cli/lookup.ts";
import { runtime } from "../../../src/proto/messages.js";

const { ContainerState } = runtime.v1;
let filters: unknown[] = [];

const pod = (id: string, namespace: string, age: number) => ({
  id,
  metadata: { name: `pod-${id}`, namespace },
  created_at: toLong(100 - age),
});
const container = (id: string, podId: string, age: number) => ({
  id,
  pod_sandbox_id: podId,
  metadata: { name: id },
  image: { image: id === "c1" ? "sha256:1" : "sha256:2" },
  created_at: toLong(100 - age),
});
const client = {
  ListPodSandbox: ({ filter }: { filter?: object }) => {
    filters.push(filter);
    return Promise.resolve({ items: [pod("p1", "default", 5), pod("p2", "test", 1)] });
  },
  ListContainers: ({ filter }: { filter?: object }) => {
    filters.push(filter);
    return Promise.resolve({
      containers: [container("c1", "p1", 5), container("c2", "p2", 1), container("c3", "p1", 3)],
    });
  },
  ImageStatus: () => Promise.resolve({ image: { id: "sha256:1" } }),
  ListImages: () =>
    Promise.resolve({
      images: [
        { id: "sha256:1", repo_tags: ["docker.io/library/busybox:1"], pinned: true },
        { id: "sha256:2", repo_digests: ["quay.io/a@sha256:3"] },
      ],
    }),
} as unknown as Client;

async function containers(args: object, { all = false, rawArgs = [] as string[] } = {}) {
  filters = [];
  const from = { client, find: lookup(client), all };
  return (await listContainers(from, { args, rawArgs })).containers.map(({ id }) => id);
}

test.each([
  [{}, ["c2", "c3", "c1"]],
  [{ latest: true }, ["c2"]],
  [{ last: "2" }, ["c2", "c3"]],
  [{ namespace: "default" }, ["c3", "c1"]],
  [{ namespace: "default", latest: true }, ["c3"]],
  [{ image: "busybox" }, ["c1"]],
  [{ name: "c[12]" }, ["c2", "c1"]],
])("of the containers, %j chooses %j", async (args, ids) => {
  expect(await containers(args)).toEqual(ids);
});

test.each([
  [{}, false, ContainerState.CONTAINER_RUNNING],
  [{}, true, undefined],
  [{ latest: true }, false, undefined],
  [{ last: "3" }, false, undefined],
  [{ state: "exited" }, true, ContainerState.CONTAINER_EXITED],
  [{ state: "created", latest: true }, false, ContainerState.CONTAINER_CREATED],
])("%j with all %p asks for containers in state %p", async (args, all, state) => {
  await containers(args, { all });
  expect(filters[0]).toMatchObject({ state: state === undefined ? undefined : { state } });
});

test("labels and a pod go to the daemon", async () => {
  const rawArgs = ["--label=a=b", "--label=c=d=e"];
  await containers({ pod: "test/pod-p2" }, { rawArgs });
  expect(filters.at(-1)).toMatchObject({
    pod_sandbox_id: "p2",
    label_selector: { a: "b", c: "d=e" },
  });
  expect(() => labelsOf(["--label=a"])).toThrow('--label takes key=value, not "a"');
});

test("pods are chosen by namespace, and listed newest first", async () => {
  const ids = async (args: object) =>
    (await listPods(client, { args, rawArgs: [] })).items.map(({ id }) => id);
  expect(await ids({})).toEqual(["p2", "p1"]);
  expect(await ids({ namespace: "default" })).toEqual(["p1"]);
});

test.each([
  [["--filter=dangling=true"], {}, ["sha256:2"]],
  [["--filter=dangling=false"], {}, ["sha256:1"]],
  [["--filter=reference=^quay"], {}, ["sha256:2"]],
  [[], { pinned: true }, ["sha256:1"]],
  [["--filter=reference=busybox", "--filter=dangling=true"], {}, []],
])("of the images, %j %j chooses %j", async (rawArgs, args, ids) => {
  const { images } = await listImages(client, undefined, { args, rawArgs });
  expect(images.map(({ id }) => id as string)).toEqual(ids);
});

test.each([
  [{ last: "0" }, "--last takes a number of 1 or more"],
  [{ last: "2", latest: true }, "--latest excludes --last"],
  [{ name: "[" }, "--name: Invalid regular expression"],
])("%j is refused: %s", async (args, why) => {
  expect(containers(args)).rejects.toThrow(why);
});

test("a filter of images that is none of the known is refused", async () => {
  for (const text of ["dangling=yes", "label=a", "x"]) {
    const given = { args: {}, rawArgs: [`--filter=${text}`] };
    expect(listImages(client, undefined, given)).rejects.toThrow("--filter takes dangling=true");
  }
});
