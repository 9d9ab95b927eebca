// Reads OpenTelemetry's standard variables: where traces go, which calls are traced, and the bounds of the export.
// https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables
import { hostname } from "node:os";
import { version } from "../base/build.ts";
import { messageOf } from "../base/errors.ts";
import { readSettings } from "../base/settings_file.ts";
import { withoutEnding } from "../base/text.ts";

/** ratio: of the calls without a traced parent. */
export type Sampler = { followsParent: boolean; ratio: number };

export type TraceSettings = {
  url: string;
  headers: Record<string, string>;
  /** PEM of the authorities that are trusted in place of the system's. */
  ca: string | undefined;
  /** Of one export. */
  timeoutMs: number;
  sampler: Sampler;
  resource: Record<string, string>;
  /** Spans that may wait; further ones are dropped. */
  queueMax: number;
  /** Spans of one export. */
  batchMax: number;
  /** From the first span of a batch to its export. */
  delayMs: number;
};

type Environment = Readonly<Record<string, string | undefined>>;

const samplers: Record<string, (ratio: number) => Sampler> = {
  always_on: () => ({ followsParent: false, ratio: 1 }),
  always_off: () => ({ followsParent: false, ratio: 0 }),
  traceidratio: (ratio) => ({ followsParent: false, ratio }),
  parentbased_always_on: () => ({ followsParent: true, ratio: 1 }),
  parentbased_always_off: () => ({ followsParent: true, ratio: 0 }),
  parentbased_traceidratio: (ratio) => ({ followsParent: true, ratio }),
};

/** settings: undefined if nothing is to be traced. As the specification says, a bad value is a warning. */
export function traceSettings(env: Environment): {
  settings: TraceSettings | undefined;
  warnings: string[];
} {
  const warnings: string[] = [];
  const own = (name: string) => {
    return env[`OTEL_EXPORTER_OTLP_TRACES_${name}`] || env[`OTEL_EXPORTER_OTLP_${name}`] || "";
  };
  const number = (name: string, text: string | undefined, fallback: number) => {
    if (!text || (/^\d{1,9}$/.test(text) && Number(text) > 0)) return Number(text || fallback);
    warnings.push(`${name} must be a whole number above 0, not "${text}": ${fallback} is used`);
    return fallback;
  };
  const url = endpoint(env, warnings);
  const isOff = env["OTEL_SDK_DISABLED"]?.toLowerCase() === "true";
  if (url === undefined || isOff || !exportsByOtlp(env, warnings))
    return { settings: undefined, warnings };
  const protocol = own("PROTOCOL") || "http/json";
  if (protocol !== "http/json") {
    warnings.push(`OTEL_EXPORTER_OTLP_PROTOCOL: ${protocol} is not supported, http/json is used`);
  }
  const queueMax = number("OTEL_BSP_MAX_QUEUE_SIZE", env["OTEL_BSP_MAX_QUEUE_SIZE"], 2048);
  const batch = env["OTEL_BSP_MAX_EXPORT_BATCH_SIZE"];
  const settings = {
    url,
    headers: pairs("OTEL_EXPORTER_OTLP_HEADERS", own("HEADERS"), warnings),
    ca: certificate(own("CERTIFICATE"), warnings),
    timeoutMs: number("OTEL_EXPORTER_OTLP_TIMEOUT", own("TIMEOUT"), 10_000),
    sampler: samplerOf(env, warnings),
    resource: resource(env, warnings),
    queueMax,
    batchMax: Math.min(queueMax, number("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", batch, 512)),
    delayMs: number("OTEL_BSP_SCHEDULE_DELAY", env["OTEL_BSP_SCHEDULE_DELAY"], 5_000),
  };
  return { settings, warnings };
}

/** The variable is a list; of its exporters there is one here. */
function exportsByOtlp(env: Environment, warnings: string[]): boolean {
  const names = (env["OTEL_TRACES_EXPORTER"] || "otlp").split(",").map((name) => name.trim());
  const others = names.filter((name) => !["otlp", "none"].includes(name));
  const isOtlp = names.includes("otlp");
  if (others.length > 0) {
    const effect = isOtlp ? "otlp alone is used" : "nothing is traced";
    warnings.push(`OTEL_TRACES_EXPORTER: only otlp is supported, not ${others.join()}: ${effect}`);
  }
  return isOtlp;
}

/** The endpoint of all signals gets the path of traces; that of traces is taken as it is. */
function endpoint(env: Environment, warnings: string[]): string | undefined {
  const own = env["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"] || "";
  const common = env["OTEL_EXPORTER_OTLP_ENDPOINT"] || "";
  const text = own || (common === "" ? "" : `${withoutEnding(common, "/")}/v1/traces`);
  if (text === "") return undefined;
  if (/^https?:\/\//.test(text) && URL.canParse(text)) return text;
  warnings.push("OTEL_EXPORTER_OTLP_ENDPOINT must be a URL with http or https: nothing is traced");
  return undefined;
}

function samplerOf(env: Environment, warnings: string[]): Sampler {
  const name = env["OTEL_TRACES_SAMPLER"] || "parentbased_always_on";
  const text = env["OTEL_TRACES_SAMPLER_ARG"] || "1";
  const ratio = Number(text);
  const isRatio = ratio >= 0 && ratio <= 1;
  if (!isRatio) warnings.push(`OTEL_TRACES_SAMPLER_ARG must be 0 to 1, not "${text}": 1 is used`);
  const make = Object.hasOwn(samplers, name) ? samplers[name] : undefined;
  if (make === undefined) {
    const known = Object.keys(samplers).join(", ");
    warnings.push(
      `OTEL_TRACES_SAMPLER: "${name}" is none of ${known}: parentbased_always_on is used`,
    );
  }
  return (make ?? samplers["parentbased_always_on"]!)(isRatio ? ratio : 1);
}

function resource(env: Environment, warnings: string[]): Record<string, string> {
  const given = env["OTEL_RESOURCE_ATTRIBUTES"] ?? "";
  return {
    "service.name": "isulad-ts",
    "service.version": version,
    "host.name": hostname(),
    ...pairs("OTEL_RESOURCE_ATTRIBUTES", given, warnings),
    ...(env["OTEL_SERVICE_NAME"] ? { "service.name": env["OTEL_SERVICE_NAME"] } : {}),
  };
}

/** Parses "a=1,b=2", whose values are percent-encoded. The warning has no value: headers are secrets. */
function pairs(variable: string, text: string, warnings: string[]): Record<string, string> {
  const found: Record<string, string> = {};
  for (const pair of text.split(",").filter((one) => one.trim() !== "")) {
    const [, name = "", value = ""] = /^\s*([^=\s]+)\s*=(.*)$/s.exec(pair) ?? [];
    try {
      if (name === "") throw new URIError("no name");
      found[name] = decodeURIComponent(value.trim());
    } catch {
      warnings.push(`${variable}: an entry is not NAME=VALUE, percent-encoded: it is ignored`);
    }
  }
  return found;
}

function certificate(path: string, warnings: string[]): string | undefined {
  if (path === "") return undefined;
  try {
    return readSettings(path, { fatal: false }); // comments may be of any encoding
  } catch (error) {
    warnings.push(`OTEL_EXPORTER_OTLP_CERTIFICATE: ${messageOf(error)}: it is ignored`);
    return undefined;
  }
}
