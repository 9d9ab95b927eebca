// Tests OpenTelemetry's variables: defaults, precedence, and bad values, which are warnings.
import { describe, expect, test } from "bun:test";
import { spawnSync } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { traceSettings } from "../../../src/trace/trace_settings.ts";

const at = "http://collector:4318";
const settingsOf = (env: Record<string, string>) =>
  traceSettings({ OTEL_EXPORTER_OTLP_ENDPOINT: at, ...env }).settings;

describe("traceSettings", () => {
  test("turns tracing on by an endpoint, with the defaults of the specification", () => {
    const { settings, warnings } = traceSettings({ OTEL_EXPORTER_OTLP_ENDPOINT: `${at}/` });
    expect(warnings).toEqual([]);
    expect(settings).toMatchObject({
      url: "http://collector:4318/v1/traces",
      headers: {},
      timeoutMs: 10_000,
      queueMax: 2048,
      batchMax: 512,
      delayMs: 5_000,
      sampler: { followsParent: true, ratio: 1 },
      resource: { "service.name": "isulad-ts" },
    });
  });

  test.each<Record<string, string>>([
    {},
    { OTEL_EXPORTER_OTLP_ENDPOINT: at, OTEL_SDK_DISABLED: "true" },
    { OTEL_EXPORTER_OTLP_ENDPOINT: at, OTEL_TRACES_EXPORTER: "none" },
  ])("is off with %j", (env) => {
    expect(traceSettings(env)).toEqual({ settings: undefined, warnings: [] });
  });

  test("is on where OTLP is one of several exporters", () => {
    expect(settingsOf({ OTEL_TRACES_EXPORTER: "console,otlp" })).toBeDefined();
    expect(settingsOf({ OTEL_TRACES_EXPORTER: "zipkin" })).toBeUndefined();
  });

  test("prefers the variables of traces, whose endpoint is taken as it is", () => {
    const own = {
      OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: "https://other/traces",
      OTEL_EXPORTER_OTLP_TIMEOUT: "7",
      OTEL_EXPORTER_OTLP_TRACES_TIMEOUT: "300",
    };
    expect(settingsOf(own)).toMatchObject({ url: "https://other/traces", timeoutMs: 300 });
  });

  test("decodes headers and the resource's attributes", () => {
    const settings = settingsOf({
      OTEL_EXPORTER_OTLP_HEADERS: "authorization=Bearer%20x%2Cy, tenant=a=b",
      OTEL_RESOURCE_ATTRIBUTES: "service.name=lost,zone=eu%201",
      OTEL_SERVICE_NAME: "node-7",
    });
    expect(settings!.headers).toEqual({ authorization: "Bearer x,y", tenant: "a=b" });
    expect(settings!.resource).toMatchObject({ "service.name": "node-7", zone: "eu 1" });
  });

  test("takes a sampler by its name, a queue no smaller than a batch", () => {
    const sampler = { OTEL_TRACES_SAMPLER: "traceidratio", OTEL_TRACES_SAMPLER_ARG: "0.25" };
    expect(settingsOf(sampler)!.sampler).toEqual({ followsParent: false, ratio: 0.25 });
    const off = { OTEL_TRACES_SAMPLER: "parentbased_always_off" };
    expect(settingsOf(off)!.sampler).toEqual({ followsParent: true, ratio: 0 });
    expect(settingsOf({ OTEL_BSP_MAX_QUEUE_SIZE: "10" })!.batchMax).toBe(10);
  });

  test.each<[Record<string, string>, RegExp]>([
    [{ OTEL_EXPORTER_OTLP_ENDPOINT: "collector:4317" }, /must be a URL .*nothing is traced/],
    [{ OTEL_EXPORTER_OTLP_PROTOCOL: "grpc" }, /grpc is not supported/],
    [{ OTEL_EXPORTER_OTLP_TIMEOUT: "-1" }, /OTEL_EXPORTER_OTLP_TIMEOUT must be .* 10000 is used/],
    [{ OTEL_BSP_MAX_QUEUE_SIZE: "many" }, /OTEL_BSP_MAX_QUEUE_SIZE must be .* 2048 is used/],
    [{ OTEL_TRACES_EXPORTER: "zipkin" }, /not zipkin: nothing is traced$/],
    [{ OTEL_TRACES_EXPORTER: "console, otlp" }, /not console: otlp alone is used$/],
    [{ OTEL_TRACES_SAMPLER: "toString" }, /"toString" is none of/],
    [{ OTEL_TRACES_SAMPLER_ARG: "2" }, /must be 0 to 1, not "2"/],
    [{ OTEL_EXPORTER_OTLP_HEADERS: "secret" }, /^OTEL_EXPORTER_OTLP_HEADERS: an entry is not/],
    [{ OTEL_RESOURCE_ATTRIBUTES: "a=%zz" }, /^OTEL_RESOURCE_ATTRIBUTES: an entry is not/],
    [{ OTEL_EXPORTER_OTLP_CERTIFICATE: "/none.pem" }, /\/none\.pem.*it is ignored/],
  ])("warns of %j", (env, warning) => {
    const { warnings } = traceSettings({ OTEL_EXPORTER_OTLP_ENDPOINT: at, ...env });
    expect(warnings).toEqual([expect.stringMatching(warning)]);
    expect(warnings[0]).not.toContain("secret");
  });

  test("warns of a certificate that is a FIFO, and does not wait for it", () => {
    const folder = mkdtempSync(join(tmpdir(), "isulad-trace-"));
    const certificate = join(folder, "ca.pem");
    spawnSync("mkfifo", [certificate]);
    const { settings, warnings } = traceSettings({
      OTEL_EXPORTER_OTLP_ENDPOINT: at,
      OTEL_EXPORTER_OTLP_CERTIFICATE: certificate,
    });
    rmSync(folder, { recursive: true });
    expect(settings!.ca).toBeUndefined();
    expect(warnings).toEqual([expect.stringContaining("ca.pem is a FIFO, not a regular file")]);
  });
});
