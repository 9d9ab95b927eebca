// Tests a pod's hostname, its resolv.conf and where its files are.
import { afterAll, expect, test } from "bun:test";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { hostname } from "node:os";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { podFiles, podHostname, resolvConf } from "../../../src/node/pod_files.ts";

const state = mkdtempSync(join(tmpdir(), "isulad-pod-"));
afterAll(() => rmSync(state, { recursive: true }));

test("podHostname() is the pod's, or the node's", () => {
  expect(podHostname({ hostname: "web" })).toBe("web");
  expect(podHostname({})).toBe(hostname());
});

test.each([
  [{ servers: ["10.0.0.10", "::1"] }, "nameserver 10.0.0.10\nnameserver ::1\n"],
  [{ searches: ["a.svc", "b"] }, "search a.svc b\n"],
  [{}, ""],
  [
    { servers: ["10.0.0.10"], searches: ["a"], options: ["ndots:5"] },
    "search a\nnameserver 10.0.0.10\noptions ndots:5\n",
  ],
])("resolvConf() renders %j", async (dns_config, text) => {
  expect(await resolvConf({ dns_config })).toBe(text);
});

test("resolvConf() copies the node's for a pod without DNS settings", async () => {
  expect(await resolvConf({})).toBe(readFileSync("/etc/resolv.conf", "utf8"));
});

test("a pod's files are in a file system of its own; those of an earlier build stay where they are", () => {
  const pod = { state, id: "p1", hostIpc: false };
  const own = join(state, "pod-files/p1");
  const folder = join(state, "sandboxes/p1");
  const paths = (at: string) => ({
    hosts: join(at, "hosts"),
    hostname: join(at, "hostname"),
    resolvConf: join(at, "resolv.conf"),
    shm: join(folder, "shm"),
  });
  expect(podFiles(pod)).toEqual(paths(own));
  mkdirSync(folder, { recursive: true });
  symlinkSync(join(own, "hosts"), join(folder, "hosts"));
  expect(podFiles(pod)).toEqual(paths(own));
  rmSync(join(folder, "hosts"));
  writeFileSync(join(folder, "hosts"), "");
  expect(podFiles(pod)).toEqual(paths(folder));
  expect(podFiles({ ...pod, hostIpc: true }).shm).toBe("/dev/shm");
});
