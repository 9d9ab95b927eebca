// Tests the log of failed calls: what it keeps while equal failures repeat is bounded.
import { expect, test } from "bun:test";
import { CriError } from "../../../src/base/errors.ts";
import type { Fields, Log } from "../../../src/base/log.ts";
import { FailureLog, subjectOf } from "../../../src/cri/failure_log.ts";
import { until } from "../../expect.ts";
import { recordStore } from "../fakes.ts";

test("names of any length that a client sends are kept and logged in part", async () => {
  const logged: Fields[] = [];
  const note = (_: string, fields: Fields = {}) => void logged.push(fields);
  const log: Log = { error: note, warn: note, info: note, debug: note, child: () => log };
  const failures = new FailureLog(log, 50);
  const context = { sandboxes: recordStore([]), containers: recordStore([]) } as never;
  const long = "x".repeat(1 << 20);
  const requests: [string, object][] = [
    ["StopPodSandbox", { pod_sandbox_id: long }],
    ["StopContainer", { container_id: long }],
    ["RunPodSandbox", { config: { metadata: { name: long, namespace: long } } }],
    ["CreateContainer", { pod_sandbox_id: "p", config: { metadata: { name: long } } }],
    ["PullImage", { image: { image: long } }],
  ];
  for (const [call, request] of requests) {
    const error = new CriError("INVALID_ARGUMENT", long);
    for (let count = 0; count < 3; count++) failures.add(context, { call, request, error });
  }
  await until("the counts are logged", () => logged.length === 2 * requests.length);
  expect(logged.map(({ call, times }) => [call, times])).toEqual([
    ...requests.map(([call]) => [call, undefined]),
    ...requests.map(([call]) => [call, 2]),
  ] as never);
  const lengths = logged.flatMap((fields) => Object.values(fields).map((text) => `${text}`.length));
  expect(Math.max(...lengths)).toBeLessThan(5_000);
});

test("an image has the name that its user gave it, not the id by which kubelets create containers", () => {
  const context = { sandboxes: recordStore([]), containers: recordStore([]) } as never;
  const image = { image: "sha256:059e", user_specified_image: "busybox:1" };
  expect(subjectOf(context, { config: { image } }).image).toBe("busybox:1");
  expect(subjectOf(context, { config: { image: { image: "sha256:059e" } } }).image).toBe(
    "sha256:059e",
  );
  expect(subjectOf(context, { image: "busybox:2" }).image).toBe("busybox:2");
});
