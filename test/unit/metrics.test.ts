// Tests where metrics and health are served: address, TLS, and what a renewed certificate changes.
import { afterAll, expect, test } from "bun:test";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { loadConfig } from "../../src/base/config.ts";
import { silentLog } from "../../src/base/log.ts";
import type { Context } from "../../src/cri/context.ts";
import { openMetrics } from "../../src/metrics.ts";
import { Authority } from "../certificates.ts";
import { freePort } from "../registry.ts";

const dir = mkdtempSync(join(tmpdir(), "isulad-metrics-"));
const authority = new Authority(dir);
for (const name of ["one", "two"]) authority.sign(name, "IP:127.0.0.3");
const tlsOf = (name: string) => ({
  metricsTlsCert: join(dir, `${name}.pem`),
  metricsTlsKey: join(dir, `${name}.key`),
});
afterAll(() => rmSync(dir, { recursive: true }));

/** Serves with these settings, and asks /healthz at 127.0.0.3; "refused" if nothing listens there. */
async function healthz(more: object, scheme = "http", ca?: string) {
  const { config } = loadConfig(undefined);
  const settings = { ...config, metricsPort: await freePort(), ...more };
  const context = { config: settings, log: silentLog(), tlsServers: {} } as Context;
  await using stack = new AsyncDisposableStack();
  await openMetrics(context, stack, () => true);
  const ask = (tls: object) =>
    fetch(`${scheme}://127.0.0.3:${settings.metricsPort}/healthz`, { tls, keepalive: false }).then(
      (answer) => answer.text(),
      () => "refused",
    );
  const first = await ask({ ca });
  const { metricsTlsCert: cert, metricsTlsKey: key } = tlsOf("two");
  const isRenewed = context.tlsServers.metrics?.renewal({ cert, key }) !== undefined;
  return { first, isRenewed, untrusted: await ask({}) };
}

test("metrics are on loopback's first address by default, and on another one that is configured", async () => {
  expect((await healthz({})).first).toBe("refused");
  expect((await healthz({ metricsAddress: "127.0.0.3" })).first).toBe("ok\n");
});

test("with a certificate the port speaks TLS only, and takes a renewed one", async () => {
  const settings = { metricsAddress: "127.0.0.3", ...tlsOf("one") };
  expect(await healthz(settings, "https", authority.pem)).toEqual({
    first: "ok\n",
    isRenewed: true,
    untrusted: "refused",
  });
  expect(await healthz(settings)).toMatchObject({ first: "refused", untrusted: "refused" });
});

test("an unusable certificate stops the start, and the error names it", async () => {
  const failed = (more: object) => healthz(more).then(String, (error: Error) => error.message);
  expect(await failed({ ...tlsOf("none") })).toContain("cannot serve metrics with TLS");
});
