// Tests the configurations that `isulad-ts run` builds from its options, and the errors of malformed ones.
import { expect, test } from "bun:test";
import {
  containerConfig,
  nameOf,
  podConfig,
  type RunOptions,
} from "../../../src/cli/run_options.ts";

function options(more: Partial<RunOptions> = {}): RunOptions {
  const lists = { command: [], env: [], volumes: [], ports: [] };
  const flags = { hostNetwork: false, privileged: false, runtimeHandler: "" };
  return { image: "busybox", ...lists, ...flags, ...more };
}

const container = (more: Partial<RunOptions>) => containerConfig(options(more), "u", "sha256:1");

test("the name is --name or the image's last part as a DNS label", () => {
  expect(nameOf({ image: "quay.io/a/My_App:1@sha256:1" })).toBe("my-app");
  expect(nameOf({ image: "___" })).toBe("pod");
  expect(nameOf({ image: "x", name: "web-1" })).toBe("web-1");
  expect(() => nameOf({ image: "x", name: "Web" })).toThrow('--name "Web"');
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
