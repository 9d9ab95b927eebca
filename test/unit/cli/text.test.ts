// Tests the texts that the CLI prints: sizes, ages, tables, JSON and licences.
import { expect, test } from "bun:test";
import { toLong } from "../../../src/base/int64.ts";
import { licenseText } from "../../../src/cli/licenses.ts";
import { containerTable, imageTable, podTable } from "../../../src/cli/list.ts";
import { age, infoJson, protoJson, readableTimes, size, timestamp } from "../../../src/cli/text.ts";
import { bunVersion, packages } from "../../../src/proto/licenses.ts";
import { runtime } from "../../../src/proto/messages.js";

const { ContainerState, PodSandboxState } = runtime.v1;
const second = 1_000_000_000n;
const now = 1_800_000_000n;
const ago = (seconds: number) => toLong((now - BigInt(seconds)) * second);

test.each([
  [0, "Less than a second ago"],
  [1, "1 second ago"],
  [59, "59 seconds ago"],
  [60, "About a minute ago"],
  [119, "About a minute ago"],
  [120, "2 minutes ago"],
  [3600, "About an hour ago"],
  [2 * 3600, "2 hours ago"],
  [47 * 3600, "47 hours ago"],
  [3 * 86400, "3 days ago"],
  [20 * 86400, "2 weeks ago"],
  [100 * 86400, "3 months ago"],
  [800 * 86400, "2 years ago"],
])("age of %d seconds is %s", (seconds, text) => {
  expect(age(ago(seconds), Number(now) * 1000)).toBe(text);
});

test("size has three digits and decimal units", () => {
  expect([0n, 999n, 4_261_574n, 1_500_000_000n].map(size)).toEqual([
    "0B",
    "999B",
    "4.26MB",
    "1.5GB",
  ]);
});

test("pods, containers and images are in crictl's columns", () => {
  const created_at = toLong(BigInt(Date.now() - 5 * 60_000) * 1_000_000n);
  const pod = {
    id: "0123456789abcdef",
    metadata: { name: "web", namespace: "default", attempt: 2 },
    state: PodSandboxState.SANDBOX_NOTREADY,
    created_at,
  };
  expect(podTable([pod], false)).toBe(
    "POD ID              CREATED             STATE               NAME                NAMESPACE           ATTEMPT             RUNTIME\n" +
      "0123456789abc       5 minutes ago       NotReady            web                 default             2                   (default)\n",
  );
  const container = {
    id: "fedcba9876543210",
    pod_sandbox_id: pod.id,
    metadata: { name: "app", attempt: 0 },
    image: { image: "sha256:00112233445566778899" },
    state: ContainerState.CONTAINER_RUNNING,
    created_at,
    labels: { "io.kubernetes.pod.name": "web" },
  };
  expect(containerTable([container], false)).toBe(
    "CONTAINER           IMAGE               CREATED             STATE               NAME                ATTEMPT             POD ID              POD                 NAMESPACE\n" +
      "fedcba9876543       0011223344556       5 minutes ago       Running             app                 0                   0123456789abc       web                 unknown\n",
  );
  const unlabelled = { ...container, labels: {} };
  const pods = new Map([[pod.id, pod.metadata]]);
  expect(containerTable([unlabelled], false, pods)).toMatch(/ 0123456789abc +web +default\n$/);
  const images = [
    { id: "sha256:1122334455667788", repo_tags: ["127.0.0.1:5000/b:1", "a:2"], size: toLong(1000) },
    { id: "sha256:99", repo_digests: ["c@sha256:abcdef"], size: toLong(1) },
  ];
  expect(imageTable(images, { fullIds: false, digests: true }).split("\n")).toEqual([
    "IMAGE               TAG                 DIGEST              IMAGE ID            SIZE",
    "127.0.0.1:5000/b    1                   <none>              1122334455667       1kB",
    "a                   2                   <none>              1122334455667       1kB",
    "c                   <none>              abcdef              99                  1B",
    "",
  ]);
});

test("a status in JSON has camelCase names, RFC 3339 times, and unchanged labels", () => {
  const answer = new runtime.v1.ContainerStatus({
    created_at: toLong(now * second + 5n),
    state: ContainerState.CONTAINER_EXITED,
    labels: { some_label: "x" },
  });
  const form = { longs: String, enums: String, defaults: true };
  const json = readableTimes(protoJson(runtime.v1.ContainerStatus.toObject(answer, form)));
  expect(json).toMatchObject({
    createdAt: "2027-01-15T08:00:00.000000005Z",
    startedAt: "1970-01-01T00:00:00.000000000Z",
    exitCode: 0,
    state: "CONTAINER_EXITED",
    labels: { some_label: "x" },
    mounts: [],
  });
  expect(json).not.toHaveProperty("user");
  expect(timestamp(now * second)).toBe("2027-01-15T08:00:00.000000000Z");
  expect(infoJson({ a: '{"b":1}', c: "plain" })).toEqual({ a: { b: 1 }, c: "plain" });
});

test("the licences name every bundled package and have each text once", () => {
  const text = licenseText({ bunVersion, packages });
  for (const name of ["@grpc/grpc-js", "protobufjs", "citty", "long", "valibot"]) {
    expect(text).toMatch(new RegExp(`^${name} +\\d`, "m"));
  }
  expect(text.match(/Permission is hereby granted/g)?.length).toBeGreaterThan(1);
  expect(packages.every(({ text }) => text.length > 200)).toBe(true);
});
