// Provides fakes, samples and helpers that the unit tests share.
import { messageOf } from "../../src/base/errors.ts";
import { createLog, type Log, type LogLevel } from "../../src/base/log.ts";
import { newUpstream, type PullSession, type Upstream } from "../../src/registry/pull_session.ts";
import type { RegistryOptions } from "../../src/registry/resolve_endpoints.ts";
import { CriError } from "../../src/base/errors.ts";
import type { Container, ContainerPhase } from "../../src/state/container.ts";
import { noNetworkYet, type Sandbox } from "../../src/state/sandbox.ts";

export const registryOptions: RegistryOptions = {
  mirrors: [],
  insecure: [],
  configPath: "",
  authFile: "",
  progressTimeoutMs: 30_000,
};

export function upstream(url: string, o: Partial<Upstream> = {}): Upstream {
  const can = { isOrigin: true, canPull: true, canResolve: true };
  const endpoint = { url, ...can, headers: {}, tls: { skipVerify: false }, from: "test" };
  return { ...newUpstream(endpoint, { from: "none" }), ...o };
}

/** A session for registry.test/a/b, with the daemon's limits. */
export function pullSession(upstreams: Upstream[], o: Partial<PullSession> = {}): PullSession {
  return {
    domain: "registry.test",
    repository: "a/b",
    upstreams,
    servedBy: "",
    triesMax: 4,
    firstBackoffMs: 500,
    progressTimeoutMs: 30_000,
    ...o,
  };
}

/** Returns the message that a promise rejects with. @throws when it resolves. */
export async function failureOf(promise: Promise<unknown>): Promise<string> {
  const value = await promise.catch((error: unknown) => ({ message: messageOf(error) }));
  if (value instanceof Object && "message" in value) return String(value.message);
  throw new Error("expected a rejection");
}

export const phases = {
  creating: { phase: "creating" },
  created: { phase: "created" },
  running: { phase: "running", pid: 7, startedAtNs: "20" },
  exited: {
    phase: "exited",
    startedAtNs: "20",
    finishedAtNs: "30",
    exitCode: 3,
    reason: "Error",
    message: "it failed",
  },
} as const satisfies Record<string, ContainerPhase>;

export function containerRecord(overrides: Partial<Container> = {}): Container {
  return {
    version: 1,
    id: "c1",
    name: "app_0_pod",
    sandboxId: "p1",
    config: { metadata: { name: "app" } },
    image: { id: "sha256:1", name: "busybox", ref: "busybox@sha256:2" },
    runtimeHandler: "runc",
    runtimeKind: "oci",
    createdAtNs: "10",
    bootId: "boot",
    logPath: "/logs/app/0.log",
    stopSignal: "SIGTERM",
    user: { uid: 1, gid: 2, groups: [3] },
    phase: phases.created,
    ...overrides,
  };
}

export function sandboxRecord(overrides: Partial<Sandbox> = {}): Sandbox {
  return {
    version: 1,
    id: "p1",
    name: "pod",
    config: { metadata: { name: "pod", namespace: "default", uid: "u1" } },
    runtimeHandler: "runc",
    runtimeKind: "oci",
    createdAtNs: "5",
    bootId: "boot",
    networkMode: "cni",
    networkSettings: noNetworkYet("p1", "/var/run/netns/p1"),
    namespaces: {},
    cgroup: { driver: "cgroupfs", parent: "" },
    torndown: false,
    phase: { phase: "ready" },
    ...overrides,
  };
}

/** A log as text, and the lines that it has written. */
export function capturedLog(level: LogLevel): { log: Log; lines: string[] } {
  const lines: string[] = [];
  const stream = { write: (text: string) => lines.push(text) };
  return { log: createLog({ level, format: "text", stream }), lines };
}

/** A store of these records; ids may be prefixes. */
export function recordStore<Item extends { id: string }>(items: Item[]) {
  const find = (id: string) => (id === "" ? undefined : items.find((one) => one.id.startsWith(id)));
  return {
    list: () => items,
    listed: (id: string) => items.find((one) => one.id === id),
    find,
    get(id: string): Item {
      const item = find(id);
      if (item === undefined) throw new CriError("NOT_FOUND", `no ${id}`);
      return item;
    },
    folderOf: (id: string) => `/graph/${id}`,
  };
}

/** A store of records that change: updates replace them in `items`. */
export function changingStore<Item extends { id: string }>(items: Item[]) {
  return {
    ...recordStore(items),
    knows: (id: string) => items.some((one) => one.id === id),
    knowsPrefix: (id: string) => items.some((one) => one.id.startsWith(id)),
    lock: async () => ({ [Symbol.dispose]: () => {} }),
    update: async (id: string, change: (old: Item) => Item) => {
      const at = items.findIndex((one) => one.id === id);
      return at < 0 ? undefined : (items[at] = change(items[at]!));
    },
  };
}
