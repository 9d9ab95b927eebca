// Fakes, samples and helpers that the unit tests share.
import { messageOf } from "../../src/base/errors.ts";
import { newUpstream, type PullSession, type Upstream } from "../../src/registry/pull_session.ts";
import type { RegistryOptions } from "../../src/registry/resolve_endpoints.ts";

export const registryOptions: RegistryOptions = {
  mirrors: [],
  insecure: [],
  configPath: "",
  authFile: "",
  progressTimeoutMs: 2000,
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
    progressTimeoutMs: 2000,
    ...o,
  };
}

/** Returns the message that a promise rejects with. @throws when it resolves. */
export async function failureOf(promise: Promise<unknown>): Promise<string> {
  const value = await promise.catch((error: unknown) => ({ message: messageOf(error) }));
  if (value instanceof Object && "message" in value) return String(value.message);
  throw new Error("expected a rejection");
}
