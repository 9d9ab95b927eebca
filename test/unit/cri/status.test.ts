// Tests status and list messages: how records of every phase appear to CRI clients.
import { describe, expect, test } from "bun:test";
import { toBigInt } from "../../../src/base/int64.ts";
import {
  containerMessage,
  containerStatus,
  containerStatusMessage,
  listContainers,
} from "../../../src/cri/container_status.ts";
import type { Context } from "../../../src/cri/context.ts";
import { listPodSandbox, sandboxStatusMessage } from "../../../src/cri/sandbox_status.ts";
import { runtime } from "../../../src/proto/messages.js";
import type { ContainerPhase } from "../../../src/state/container.ts";
import { containerRecord, phases, recordStore, sandboxRecord } from "../fakes.ts";

const { ContainerState, PodSandboxState, Signal } = runtime.v1;
const { CONTAINER_CREATED, CONTAINER_RUNNING, CONTAINER_EXITED } = ContainerState;
const { SANDBOX_READY, SANDBOX_NOTREADY } = PodSandboxState;

describe("a container", () => {
  test.each<[ContainerPhase["phase"], number, object]>([
    ["creating", CONTAINER_CREATED, { started: 0n, finished: 0n, reason: undefined }],
    ["created", CONTAINER_CREATED, { started: 0n, finished: 0n, exit_code: undefined }],
    ["running", CONTAINER_RUNNING, { started: 20n, finished: 0n, reason: undefined }],
    [
      "exited",
      CONTAINER_EXITED,
      { started: 20n, finished: 30n, exit_code: 3, reason: "Error", message: "it failed" },
    ],
  ])("that is %s has its state and times", (phase, state, times) => {
    const container = containerRecord({ phase: phases[phase] });
    const status = containerStatusMessage(container);
    const { exit_code, reason, message } = status;
    const started = toBigInt(status.started_at);
    const finished = toBigInt(status.finished_at);
    expect({ started, finished, exit_code, reason, message }).toMatchObject(times);
    expect([status.state, containerMessage(container).state]).toEqual([state, state]);
  });

  test("has its image under the name that the user gave, and by id", () => {
    const container = containerRecord({ config: { image: { image: "sha256:1" } } });
    expect(containerStatusMessage(container)).toMatchObject({
      image: { image: "busybox" },
      image_ref: "busybox@sha256:2",
      image_id: "sha256:1",
    });
    expect(containerMessage(container)).toMatchObject({
      image: { image: "sha256:1", user_specified_image: "busybox" },
      image_ref: "sha256:1",
    });
  });

  test.each([
    ["SIGTERM", Signal.SIGNAL_SIGTERM],
    ["15", Signal.SIGNAL_SIGTERM],
    ["SIGCHLD", Signal.SIGNAL_SIGCHLD],
    ["17", Signal.SIGNAL_SIGCHLD],
    ["SIGRTMIN+3", Signal.SIGNAL_SIGRTMINPLUS3],
  ])("has CRI's signal for stop signal %s", (stopSignal, signal) => {
    expect(containerStatusMessage(containerRecord({ stopSignal })).stop_signal).toBe(signal);
  });
});

test("a container's info has environment values as text", async () => {
  const values = ["/usr/bin:/bin", "\uFEFFä€", ""];
  const envs = values.map((value) => ({ key: "NAME", value: Buffer.from(value) }));
  const latin = { key: "LATIN1", value: Uint8Array.of(0x61, 0xe4) };
  const container = containerRecord({ config: { command: ["a"], envs: [...envs, latin] } });
  const context = {
    containers: { ...recordStore([container]), folderOf: () => "/nonexistent" },
    handlers: new Map(),
  } as unknown as Context;
  const { info } = await containerStatus(context, { container_id: "c1", verbose: true });
  const { config } = JSON.parse(info!["info"]!) as { config: object };
  expect(config).toEqual({
    command: ["a"],
    envs: [...values.map((value) => ({ key: "NAME", value })), { key: "LATIN1", value: "a\uFFFD" }],
  });
});

describe("a sandbox", () => {
  const settings = { ...sandboxRecord().networkSettings, IPs: ["10.0.0.2", "fd00::2"] };

  test("has its addresses until it is torn down", () => {
    const sandbox = sandboxRecord({ networkSettings: settings });
    expect(sandboxStatusMessage(sandbox)).toMatchObject({
      state: SANDBOX_READY,
      network: { ip: "10.0.0.2", additional_ips: [{ ip: "fd00::2" }] },
    });
    const torndown = {
      ...sandbox,
      torndown: true,
      phase: { phase: "notready", message: "" },
    } as const;
    expect(sandboxStatusMessage(torndown)).toMatchObject({
      state: SANDBOX_NOTREADY,
      network: { ip: "", additional_ips: [] },
    });
  });

  test("has the namespace options of its request", () => {
    const options = { pid: runtime.v1.NamespaceMode.CONTAINER };
    const config = { linux: { security_context: { namespace_options: options } } };
    expect(sandboxStatusMessage(sandboxRecord({ config })).linux?.namespaces?.options).toBe(
      options,
    );
  });
});

describe("lists", () => {
  const context = {
    containers: recordStore([
      containerRecord({ id: "a" }),
      containerRecord({ id: "b", phase: phases.running }),
    ]),
    sandboxes: recordStore([
      sandboxRecord({ id: "p" }),
      sandboxRecord({ id: "q", phase: { phase: "notready", message: "" } }),
    ]),
  } as unknown as Context;
  const call = { signal: new AbortController().signal };
  const containerIds = async (filter: object | undefined) => {
    const { bytes } = await listContainers(context, { filter }, call);
    return runtime.v1.ListContainersResponse.decode(bytes).containers.map(({ id }) => id);
  };
  const sandboxIds = async (filter: object | undefined) => {
    const { bytes } = await listPodSandbox(context, { filter }, call);
    return runtime.v1.ListPodSandboxResponse.decode(bytes).items.map(({ id }) => id);
  };

  test("have only items of the requested state, or all", async () => {
    expect(await containerIds(undefined)).toEqual(["a", "b"]);
    expect(await containerIds({ state: { state: CONTAINER_RUNNING } })).toEqual(["b"]);
    expect(await containerIds({ state: {} })).toEqual(["a"]);
    expect(await sandboxIds(undefined)).toEqual(["p", "q"]);
    expect(await sandboxIds({ state: { state: SANDBOX_NOTREADY } })).toEqual(["q"]);
    expect(await sandboxIds({ state: {} })).toEqual(["p"]);
  });
});
