// Tests the keys that a reload applies, and the views of the configuration that follow it.
import { describe, expect, test } from "bun:test";
import type { Config } from "../../../src/base/config.ts";
import type { Key } from "../../../src/base/config_key.ts";
import { daemonKeys } from "../../../src/base/config_keys.ts";
import { nriKeys } from "../../../src/base/config_nri_keys.ts";
import { applyLive } from "../../../src/base/config_reload.ts";
import { liveFields } from "../../../src/base/live_fields.ts";

type Values = Record<string, unknown>;

function defaultsOf(keys: Record<string, Key>): Values {
  return Object.fromEntries(Object.entries(keys).map(([field, { fallback }]) => [field, fallback]));
}

function configOf(values: Values = {}, nri: Values = {}): Config & Values {
  const all = { ...defaultsOf(daemonKeys), ...values, nri: { ...defaultsOf(nriKeys), ...nri } };
  return all as unknown as Config & Values;
}

const fields = Object.entries<Key>(daemonKeys).filter(
  ([field]) => !/Tls(Cert|Key)$/.test(field) && field !== "serveBlobsPrivate",
);

describe("applyLive", () => {
  test.each(fields)("applies %s in place, or names it for a restart", (field, { key, live }) => {
    const config = configOf();
    const change = applyLive(config, configOf({ [field]: ["changed"] }));
    expect(change).toEqual(
      live ? { applied: [key], restart: [] } : { applied: [], restart: [key] },
    );
    expect(config).toEqual(configOf(live ? { [field]: ["changed"] } : {}));
  });

  test.each(Object.entries<Key>(nriKeys))("does so with nri.%s", (field, { key, live }) => {
    const config = configOf();
    const { nri } = config;
    const change = applyLive(config, configOf({}, { [field]: ["changed"] }));
    expect(change).toEqual(
      live ? { applied: [key], restart: [] } : { applied: [], restart: [key] },
    );
    expect(config).toEqual(configOf({}, live ? { [field]: ["changed"] } : {}));
    expect(config.nri).toBe(nri); // NRI's host keeps it
  });

  test("reports nothing for equal values, limits of 64 bit among them", () => {
    const ulimits = () => [{ type: "RLIMIT_NOFILE", hard: 2n ** 64n - 1n, soft: 5n }];
    const [one, other] = [
      configOf({ defaultUlimits: ulimits() }),
      configOf({ defaultUlimits: ulimits() }),
    ];
    expect(applyLive(one, other)).toEqual({ applied: [], restart: [] });
  });

  test("names what needs a restart again at the next reload", () => {
    const config = configOf();
    const next = configOf({ graph: "/other" });
    expect(applyLive(config, next).restart).toEqual(["graph"]);
    expect(applyLive(config, next).restart).toEqual(["graph"]);
  });

  test.each([
    ["stream", "stream"],
    ["metrics", "metrics"],
    ["serveBlobs", "serve-blobs"],
  ])("takes another certificate of %s, but neither begins nor ends TLS", (server, name) => {
    const [one, two] = ["1", "2"].map((n) => ({
      [`${server}TlsCert`]: `/c${n}`,
      [`${server}TlsKey`]: `/k${n}`,
    }));
    const keys = [`${name}-tls-cert`, `${name}-tls-key`];
    expect(applyLive(configOf(one), configOf(two))).toEqual({ applied: keys, restart: [] });
    for (const [from, to] of [
      [{}, one],
      [one, {}],
    ]) {
      const config = configOf(from);
      expect(applyLive(config, configOf(to))).toEqual({ applied: [], restart: keys });
      expect(config).toEqual(configOf(from));
    }
  });

  test("serves private images only once the mirror has TLS, and stops at once", () => {
    const isPrivate = { serveBlobsPrivate: true };
    const withTls = { serveBlobsTlsCert: "/c", serveBlobsTlsKey: "/k" };
    const plain = configOf();
    const { applied, restart } = applyLive(plain, configOf({ ...withTls, ...isPrivate }));
    expect(applied).toEqual([]);
    expect(restart).toContain("serve-blobs-private");
    expect(plain.serveBlobsPrivate).toBe(false);
    const encrypted = configOf(withTls);
    for (const value of [true, false]) {
      const next = configOf({ ...withTls, serveBlobsPrivate: value });
      expect(applyLive(encrypted, next).applied).toEqual(["serve-blobs-private"]);
    }
  });
});

test("liveFields follows the configuration under its own names", () => {
  const config = configOf({ cniConfDir: "/a" });
  const view = liveFields(config, { confDir: "cniConfDir", graceMs: "cniTimeoutMs" });
  expect({ ...view }).toEqual({ confDir: "/a", graceMs: 60_000 });
  config.cniConfDir = "/b";
  expect(view.confDir).toBe("/b");
});
