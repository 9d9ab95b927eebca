// Tests a pod's hostname and its resolv.conf.
import { afterAll, expect, test } from "bun:test";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { hostname } from "node:os";
import { tmpdir } from "node:os";
import { join } from "node:path";
import {
  makePodFiles,
  podFiles,
  podHostname,
  removePodFiles,
} from "../../../src/node/pod_files.ts";

const folder = mkdtempSync(join(tmpdir(), "isulad-pod-"));
afterAll(() => rmSync(folder, { recursive: true }));

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
])("makePodFiles() writes resolv.conf for %j", async (dns_config, text) => {
  const files = podFiles(folder, true);
  await makePodFiles(files, { hostname: "web", dns_config });
  expect(readFileSync(files.resolvConf, "utf8")).toBe(text);
  expect(readFileSync(files.hostname, "utf8")).toBe("web\n");
  expect(files.shm).toBe("/dev/shm");
  removePodFiles(files); // leaves the node's /dev/shm alone
});

test("makePodFiles() copies the node's resolv.conf for a pod without DNS settings", async () => {
  const files = podFiles(folder, true);
  await makePodFiles(files, {});
  expect(readFileSync(files.resolvConf, "utf8")).toBe(readFileSync("/etc/resolv.conf", "utf8"));
});
