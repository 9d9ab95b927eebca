// Checks that files with secrets are not readable for every user of the node.
import { statSync } from "node:fs";
import { join } from "node:path";
import type { Config } from "../base/config.ts";
import { daemonKeys, tlsServerNames } from "../base/config_keys.ts";
import type { Finding, Node } from "./node.ts";

const readableForOthers = 0o004;

/** Files that do not exist are those of other checks. */
export function checkSecrets({ root }: Node, config: Config): Finding[] {
  const check = "secrets";
  const fields = [
    "registryAuthFile",
    ...tlsServerNames.map((name) => `${name}TlsKey` as const),
  ] as const;
  const files = fields.map((field) => [daemonKeys[field].key, config[field]] as const);
  const open = files.filter(([, path]) => path !== "" && isOpen(join(root, path)));
  if (open.length === 0) return [{ check, state: "ok", detail: "no file is readable for others" }];
  return open.map(([key, path]) => {
    const detail = `every user of the node may read ${path} (${key})`;
    return { check, state: "warn", detail, mend: `chmod o-r ${path}` };
  });
}

function isOpen(path: string): boolean {
  try {
    return (statSync(path).mode & readableForOthers) !== 0;
  } catch {
    return false; // it is missing, or this user cannot enter its folder
  }
}
