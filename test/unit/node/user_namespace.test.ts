// Tests the child that creates namespaces of a user namespace, with another program in unshare's place.
import { afterAll, beforeAll, expect, test } from "bun:test";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import process from "node:process";
import { makeOwnedNamespaces } from "../../../src/node/user_namespace.ts";

const path = process.env["PATH"];
let dir = "";
beforeAll(() => {
  dir = mkdtempSync(join(tmpdir(), "unshare-"));
  process.env["PATH"] = `${dir}:${path}`;
});
afterAll(() => {
  process.env["PATH"] = path;
  rmSync(dir, { recursive: true });
});

function make(script: string, signal: AbortSignal) {
  writeFileSync(join(dir, "unshare"), `#!/bin/sh\n${script}\n`, { mode: 0o755 });
  const mappings = { uidMappings: [], gidMappings: [] };
  const files = { user: join(dir, "user") };
  return makeOwnedNamespaces({ files, mappings, script: "", args: [], signal });
}

const soon = () => AbortSignal.timeout(10_000);

test("makeOwnedNamespaces() returns the exit code and stderr of a child that fails", async () => {
  const { exitCode, stderr } = await make("echo unshare: no >&2; exit 7", soon());
  expect({ exitCode, stderr }).toEqual({ exitCode: 7, stderr: "unshare: no" });
});

test("makeOwnedNamespaces() returns when the child has exited, even if another process keeps its stdout open", async () => {
  const { exitCode, stderr } = await make("setsid sleep 60 & echo $! >&2; exit 7", soon());
  process.kill(Number(stderr), "SIGKILL");
  expect(exitCode).toBe(7);
});

test("makeOwnedNamespaces() kills the child and its children at the deadline", async () => {
  const made = make("sleep 60; true", AbortSignal.timeout(200));
  expect(await made.catch((error: unknown) => error)).toMatchObject({
    code: "DEADLINE_EXCEEDED",
    message: expect.stringContaining("unshare --user (pid "),
  });
});

test("makeOwnedNamespaces() reports a program that cannot be started", async () => {
  process.env["PATH"] = join(dir, "none");
  const mappings = { uidMappings: [], gidMappings: [] };
  const made = makeOwnedNamespaces({
    files: { user: join(dir, "user") },
    mappings,
    script: "",
    args: [],
    signal: soon(),
  });
  expect(await made.catch((error: unknown) => error)).toMatchObject({
    code: "FAILED_PRECONDITION",
    message: expect.stringContaining("cannot run unshare"),
  });
});
