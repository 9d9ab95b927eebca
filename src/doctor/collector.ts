// Checks the trace collector that the service's OTEL_ variables name. Pods run without it: a fault is a warning.
import type { Config } from "../base/config.ts";
import { messageOf } from "../base/errors.ts";
import { traceSettings } from "../trace/trace_settings.ts";
import { textAt, type Finding, type Node } from "./node.ts";

/** The unit's EnvironmentFile lines; the later one wins. */
const files = ["/etc/default/isulad-ts", "/etc/sysconfig/isulad-ts"];

export async function checkCollector(node: Node, config: Config): Promise<Finding[]> {
  const check = "trace collector";
  const place = files.find((file) => textAt(node, file) !== undefined) ?? files[0]!;
  const { settings, warnings } = traceSettings(environment(node, config));
  const findings = warnings.map((detail): Finding => {
    return { check, state: "warn", detail, mend: `correct it in ${place}, and restart the daemon` };
  });
  if (settings === undefined) return findings;
  const { url } = settings;
  try {
    await node.trace(settings);
    return [...findings, { check, state: "ok", detail: `${url} takes spans` }];
  } catch (error) {
    const why = `${url} does not take spans: ${messageOf(error)}`;
    const detail = `${why}; they are dropped, calls go on`;
    const mend = `start it, or correct OTEL_EXPORTER_OTLP_ENDPOINT in ${place} (OTLP over HTTP, usually port 4318)`;
    return [...findings, { check, state: "warn", detail, mend }];
  }
}

/**
 * Returns the running daemon's variables. If there is no daemon, or this user may not read its variables, returns the
 * doctor's own, overridden by those with which the unit starts the daemon.
 */
function environment(node: Node, { pidfile }: Config): Record<string, string | undefined> {
  const pid = textAt(node, pidfile) ?? "";
  const program = /^\d+$/.test(pid) ? textAt(node, `/proc/${pid}/comm`) : undefined;
  if (node.isRoot && program?.startsWith("isulad-ts") === true) {
    return variables((textAt(node, `/proc/${pid}/environ`) ?? "").split("\0"));
  }
  const lines = files.flatMap((file) => (textAt(node, file) ?? "").split("\n"));
  return { ...node.environment, ...variables(lines) };
}

/** Lines NAME=value as systemd reads them, quotes removed. */
function variables(lines: string[]): Record<string, string> {
  const pairs = lines.flatMap((line): [string, string][] => {
    const [, name, value] = /^\s*([A-Za-z_]\w*)=(.*)$/s.exec(line) ?? [];
    if (name === undefined) return [];
    return [[name, value!.trim().replace(/^(["'])(.*)\1$/s, "$2")]];
  });
  return Object.fromEntries(pairs);
}
