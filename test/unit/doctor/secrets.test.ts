// Tests the check of files with secrets.
import { afterEach, beforeEach, expect, test } from "bun:test";
import { chmodSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { Config } from "../../../src/base/config.ts";
import type { Node } from "../../../src/doctor/node.ts";
import { checkSecrets } from "../../../src/doctor/secrets.ts";

let root = "";
beforeEach(() => (root = mkdtempSync(join(tmpdir(), "isulad-secrets-"))));
afterEach(() => rmSync(root, { recursive: true }));

const unset = { registryAuthFile: "", streamTlsKey: "", metricsTlsKey: "", serveBlobsTlsKey: "" };

function check(config: Partial<Config>) {
  return checkSecrets({ root } as Node, { ...unset, ...config } as Config);
}

test("credentials and keys that every user may read are a warning, each with its file", () => {
  for (const name of ["auth.json", "key.pem"]) writeFileSync(join(root, name), "", { mode: 0o644 });
  const config = { registryAuthFile: "/auth.json", metricsTlsKey: "/key.pem" };
  const what = (path: string, key: string) => ({
    check: "secrets",
    state: "warn",
    detail: `every user of the node may read ${path} (${key})`,
    mend: `chmod o-r ${path}`,
  });
  expect(check(config)).toEqual([
    what("/auth.json", "registry-auth-file"),
    what("/key.pem", "metrics-tls-key"),
  ] as never);
  chmodSync(join(root, "auth.json"), 0o640);
  expect(check(config)).toEqual([what("/key.pem", "metrics-tls-key")] as never);
});

test("files that are unset or missing are not this check's", () => {
  const [finding, ...others] = check({ registryAuthFile: "/none" });
  expect([finding!.state, others]).toEqual(["ok", []]);
});
