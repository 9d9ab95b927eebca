// Compares our .proto files with the compiled descriptors of k8s.io/cri-api, containerd/nri and
// containerd/api, taken through the Go module proxy.
import { expect, test } from "bun:test";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { describe as facts, differences } from "./describe.ts";

const here = import.meta.dirname;
const ours = protoFile("cri.proto");
const goMinutes = 10;

const go = goVersion();
if (!go.enough) console.log(`comparisons skipped: ${go.found}; they need Go 1.26 or newer`);

test.skipIf(!go.enough).each([
  ["cri.proto", "cri", 700],
  ["nri.proto", "nri", 400],
])(
  "%s has upstream's messages, fields, enums and methods, and nothing else",
  (file, name, linesMin) => {
    const theirs = upstream(name);
    expect(theirs.length).toBeGreaterThan(linesMin);
    expect(differences(facts(protoFile(file)), theirs)).toEqual([]);
  },
  goMinutes * 60_000,
);

test.skipIf(!go.enough)(
  "containerd.proto has nothing that upstream has not",
  () => {
    const theirs = upstream("containerd").map(inOnePackage);
    const own = facts(protoFile("containerd.proto")).map(inOnePackage);
    expect(own.length).toBeGreaterThan(40);
    expect(own.filter((line) => !theirs.includes(line))).toEqual([]);
    const planted = facts(
      protoFile("containerd.proto").replace("uint32 pid = 3;", "int32 pid = 3;"),
    );
    expect(planted.map(inOnePackage).filter((line) => !theirs.includes(line))).toEqual([
      "field containerd.Process.pid = 3, optional int32",
    ]);
  },
  goMinutes * 60_000,
);

const planted: [what: string, from: string, to: string, lines: number][] = [
  ["a field's number", "string hostname = 2;", "string hostname = 20;", 2],
  ["a field's name", "string hostname = 2;", "string host_name = 2;", 2],
  ["a field's type", "int64 timeout = 2;", "int32 timeout = 2;", 2],
  ["a message for another", "DNSConfig dns_config = 4;", "PodIP dns_config = 4;", 2],
  ["a list for one", "repeated Mount mounts = 7;", "Mount mounts = 7;", 2],
  ["a map's value", "map<string, string> sysctls", "map<string, bytes> sysctls", 2],
  ["a missing field", "string hostname = 2;", "", 1],
  ["a field too many", "string hostname = 2;", "string hostname = 2; bool x = 99;", 1],
  ["a field that became oneof", "string hostname = 2;", "oneof x { string hostname = 2; }", 2],
  ["a lost deprecation", "apparmor_profile = 9 [deprecated = true]", "apparmor_profile = 9", 2],
  ["an enum's value", "SIGNAL_SIGKILL = 13;", "SIGNAL_SIGKILL = 99;", 2],
  ["a missing value", "UDP = 1;", "", 1],
  ["a stream", "returns (stream ContainerEventResponse)", "returns (ContainerEventResponse)", 2],
  ["a missing method", "rpc Version(VersionRequest) returns (VersionResponse) {}", "", 1],
  ["a message's name", "RestoredContainer", "RestoredOne", 8],
  ["a missing redaction", "string password = 2 [debug_redact = true];", "string password = 2;", 2],
  ["a reserved number", "message VersionRequest {", "message VersionRequest { reserved 9;", 1],
];

test.each(planted)("the comparison sees %s", (what, from, to, lines) => {
  const text = ours.replaceAll(/\s*=\s*true\]/g, " = true]");
  expect(text, what).toContain(from);
  expect(differences(facts(text.replaceAll(from, to)), facts(ours))).toHaveLength(lines);
});

/** Returns the facts of upstream's descriptors, as main.go prints them. */
function upstream(name: string): string[] {
  // One package at a time: grpc is among them, and other tests may be running.
  const run = Bun.spawnSync(["go", "run", "-p", "1", ".", name], { cwd: here, stderr: "inherit" });
  expect(run.exitCode).toBe(0);
  return run.stdout.toString().trim().split("\n");
}

/** Names everything as containerd.proto does, which puts containerd's packages into one. */
function inOnePackage(line: string): string {
  return line
    .replaceAll(/containerd\.(services\.\w+\.v1|v1\.types)\b|google\.protobuf\b/g, "containerd")
    .replace(/^(rpc containerd\.\w+)Service\./, "$1.");
}

function protoFile(name: string): string {
  return readFileSync(join(here, "../../proto", name), "utf8");
}

function goVersion(): { enough: boolean; found: string } {
  try {
    const run = Bun.spawnSync(["go", "version"]);
    const found = run.stdout.toString().trim();
    const [, major = 0, minor = 0] = /go(\d+)\.(\d+)/.exec(found) ?? [];
    return { enough: Number(major) > 1 || Number(minor) >= 26, found };
  } catch {
    return { enough: false, found: "there is no go command" };
  }
}
