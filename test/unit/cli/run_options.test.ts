// Tests the configurations that `isulad-ts run` builds from its options, and the errors of malformed ones.
import { expect, test } from "bun:test";
import { toLong } from "../../../src/base/int64.ts";
import {
  containerConfig,
  nameOf,
  podConfig,
  runLabel,
  type RunOptions,
} from "../../../src/cli/run_options.ts";

function options(more: Partial<RunOptions> = {}): RunOptions {
  const lists = { command: [], env: [], volumes: [], ports: [], annotations: [], labels: [] };
  const streams = { stdin: false, tty: false };
  const flags = { hostNetwork: false, privileged: false, runtimeHandler: "", ...streams };
  return { image: "busybox", ...lists, ...flags, ...more };
}

const container = (more: Partial<RunOptions>) => containerConfig(options(more), "u", "sha256:1");

test("the name is --name or the image's last part as a DNS label", () => {
  expect(nameOf({ image: "quay.io/a/My_App:1@sha256:1" })).toBe("my-app");
  expect(nameOf({ image: "___" })).toBe("pod");
  expect(nameOf({ image: "x", name: "web-1" })).toBe("web-1");
  expect(() => nameOf({ image: "x", name: "Web" })).toThrow('--name "Web"');
  const long = `${"a".repeat(62)}-${"b".repeat(300)}`;
  expect(nameOf({ image: long })).toBe("a".repeat(62));
  expect(() => nameOf({ image: "x", name: long })).toThrow("at most 63 lowercase letters");
  expect(nameOf({ image: "x", name: "c".repeat(63) })).toBe("c".repeat(63));
});

test("variables have a value, or that of this process", () => {
  process.env["ISULAD_TEST_RUN"] = "here";
  const { envs } = container({ env: ["A=1=2", "ISULAD_TEST_RUN", "B="] });
  const pairs = envs!.map(({ key, value }) => `${key}:${new TextDecoder().decode(value)}`);
  expect(pairs).toEqual(["A:1=2", "ISULAD_TEST_RUN:here", "B:"]);
  expect(() => container({ env: ["=x"] })).toThrow('--env "=x"');
});

test("volumes name a host path, an absolute container path and a mode", () => {
  expect(container({ volumes: ["/a:/b:ro"] }).mounts).toEqual([
    { host_path: "/a", container_path: "/b", readonly: true },
  ]);
  for (const text of ["/a", ":/b", "/a:b", "/a:/b:rx", "/a:/b:ro:z"]) {
    expect(() => container({ volumes: [text] })).toThrow(`--volume "${text}"`);
  }
});

test("ports are 1 to 65535, with an optional host address and protocol", () => {
  const [first] = podConfig(options({ ports: ["[::1]:80:8080/udp"] }), "u", "/l").port_mappings!;
  expect(first).toMatchObject({ host_ip: "::1", host_port: 80, container_port: 8080 });
  for (const text of ["80", "0:80", "80:65536", "80:80/icmp"]) {
    expect(() => podConfig(options({ ports: [text] }), "u", "/l")).toThrow(`--publish "${text}"`);
  }
});

test("a user is a name or number, with a group by number", () => {
  const contextOf = (user: string) => container({ user }).linux!.security_context!;
  expect(contextOf("www")).toMatchObject({ run_as_username: "www" });
  expect(contextOf("0:5")).toMatchObject({
    run_as_user: { value: toLong(0) },
    run_as_group: { value: toLong(5) },
  });
  for (const text of ["", ":5", "a:b", "a:5:6"]) expect(() => contextOf(text)).toThrow("--user");
});

test("memory has units, CPUs become a quota", () => {
  const limitsOf = (more: Partial<RunOptions>) => container(more).linux!.resources!;
  expect(limitsOf({ memory: "1.5g" }).memory_limit_in_bytes).toEqual(toLong(1_610_612_736));
  expect(limitsOf({ memory: "64M" }).memory_limit_in_bytes).toEqual(toLong(67_108_864));
  expect(limitsOf({ memory: "4096" }).memory_limit_in_bytes).toEqual(toLong(4096));
  expect(limitsOf({ cpus: "0.5" })).toEqual({
    cpu_period: toLong(100_000),
    cpu_quota: toLong(50_000),
  });
  expect(limitsOf({})).toEqual({});
  for (const memory of ["", "0", "-1", "5x", "g"]) {
    expect(() => limitsOf({ memory })).toThrow("--memory");
  }
  for (const cpus of ["", "0", "-1", "two", "1.", "0.000001"]) {
    expect(() => limitsOf({ cpus })).toThrow("--cpus");
  }
});

test("an entrypoint, labels, annotations and streams reach the container", () => {
  expect(
    container({ entrypoint: "/x", command: ["a"], labels: ["k=v=w", "n"], annotations: ["a=1"] }),
  ).toMatchObject({ command: ["/x"], args: ["a"], annotations: { a: "1" } });
  expect(container({ labels: ["k=v=w", "n"] }).labels).toMatchObject({ k: "v=w", n: "" });
  expect(container({ labels: [`${runLabel}=x`] }).labels).toMatchObject({ [runLabel]: "u" });
  expect(container({ stdin: true, tty: true })).toMatchObject({
    stdin: true,
    stdin_once: true,
    tty: true,
  });
  expect(() => container({ labels: ["=v"] })).toThrow('--label "=v"');
  expect(() => container({ annotations: [""] })).toThrow('--annotation ""');
});
