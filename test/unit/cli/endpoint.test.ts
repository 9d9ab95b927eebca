// Tests the order in which the daemon's socket is looked for.
import { afterAll, expect, test } from "bun:test";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { hostOf } from "../../../src/cli/endpoint.ts";

const dir = mkdtempSync(join(tmpdir(), "isulad-endpoint-"));
const file = join(dir, "crictl.yaml");
const other = join(dir, "other.yaml");
writeFileSync(file, "runtime-endpoint: unix:///crictl\ntimeout: 2\n");
writeFileSync(other, "runtime-endpoint: unix:///other\n");
afterAll(() => rmSync(dir, { recursive: true }));

const all = {
  ISULAD_HOST: "unix:///isulad",
  CONTAINER_RUNTIME_ENDPOINT: "unix:///kubernetes",
  CRI_CONFIG_FILE: other,
};

test("--host, ISULAD_HOST, CONTAINER_RUNTIME_ENDPOINT, crictl's file, the default", async () => {
  expect(await hostOf("unix:///given", all, file)).toBe("unix:///given");
  expect(await hostOf("", all, file)).toBe("unix:///isulad");
  const { CONTAINER_RUNTIME_ENDPOINT, CRI_CONFIG_FILE } = all;
  expect(await hostOf(undefined, { CONTAINER_RUNTIME_ENDPOINT, CRI_CONFIG_FILE }, file)).toBe(
    "unix:///kubernetes",
  );
  expect(await hostOf(undefined, { ISULAD_HOST: "", CRI_CONFIG_FILE }, file)).toBe("unix:///other");
  expect(await hostOf(undefined, {}, file)).toBe("unix:///crictl");
  expect(await hostOf(undefined, {}, join(dir, "none"))).toBe("unix:///var/run/isulad.sock");
});

test("what is no unix socket is refused", async () => {
  for (const host of ["http://host", "tcp://127.0.0.1:1", "npipe:////./pipe/x"]) {
    expect(hostOf(host, {}, file)).rejects.toThrow("has the form unix:///path, not");
  }
  expect(await hostOf("/run/a.sock", {}, file)).toBe("/run/a.sock");
});

test("a file without an endpoint is the default; a wrong one is refused with advice", async () => {
  for (const text of ["", "timeout: 2", "runtime-endpoint: [1]"]) {
    writeFileSync(file, text);
    expect(await hostOf(undefined, {}, file)).toBe("unix:///var/run/isulad.sock");
  }
  writeFileSync(file, "{");
  expect(hostOf(undefined, {}, file)).rejects.toThrow(/is not YAML: .*; use --host/s);
  const gone = { CRI_CONFIG_FILE: join(dir, "none") };
  expect(hostOf(undefined, gone, file)).rejects.toThrow("use --host, or set ISULAD_HOST");
});
