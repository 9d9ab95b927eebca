// Tests request validation: the bounds of every rule, and that hostile requests never reach a handler.
import { describe, expect, test } from "bun:test";
import { toLong } from "../../../src/base/int64.ts";
import { validateRequest } from "../../../src/cri/request_validation.ts";
import type {
  ContainerConfig,
  LinuxContainerResources,
  PodSandboxConfig,
} from "../../../src/proto/types.ts";
import { containers, others, pods } from "../../cri/hostile_requests.ts";
import { codeAndMessage } from "../../spec/inputs.ts";

const containerConfig = { metadata: { name: "app" }, image: { image: "busybox" } };
const podConfig = { metadata: { name: "pod", namespace: "default", uid: "u1" } };
const create = (config: ContainerConfig) =>
  validateRequest("CreateContainer", { config: { ...containerConfig, ...config } });
const runPod = (config: PodSandboxConfig, runtime_handler = "") =>
  validateRequest("RunPodSandbox", { config: { ...podConfig, ...config }, runtime_handler });
const update = (linux: LinuxContainerResources) =>
  validateRequest("UpdateContainerResources", { linux });

/** Refused after validation, where host, image or registry are known: parts of those errors. */
const refusedLater = [
  "variable A is not UTF-8",
  'mount at "/../.."',
  "mount option",
  "/no/such/device",
  "K8S_POD_NAME",
  "cgroup parent",
  "sysctl",
  "sysctl kernel.panic",
  "userns_options.mode",
  "at least one must be true",
  "tty and stderr",
  "UPPER CASE",
  "handler",
];

function expectRefused(field: string, validate: () => void): void {
  if (refusedLater.includes(field)) {
    try {
      validate();
    } catch (error) {
      expect(error).toMatchObject({ code: "INVALID_ARGUMENT" });
    }
    return;
  }
  const message = codeAndMessage(validate);
  expect(message).toStartWith("INVALID_ARGUMENT: ");
  expect(message).toContain(field);
  expect(message.length).toBeLessThan(600);
}

describe("a hostile request is refused with field and value:", () => {
  test.each(containers)("CreateContainer: %s", (field, config) => {
    expectRefused(field, () => create(config));
  });

  test.each(pods)("RunPodSandbox: %s", (field, config) => {
    expectRefused(field, () => runPod(config));
  });

  test.each(others)("%s: %s", (rpc, field, request) => {
    expectRefused(field, () => validateRequest(String(rpc), request));
  });

  test.each(["../x.log", "a/../../x.log", ".", "..", "a/", "a\0b"])("log_path %j", (log_path) => {
    expectRefused("config.log_path", () => create({ log_path }));
  });
});

const ids = (count: number) => Array.from({ length: count }, () => ({ length: 1 }));
const userns = (count: number): PodSandboxConfig => ({
  linux: { security_context: { namespace_options: { userns_options: { uids: ids(count) } } } },
});
const sysctl = (value: string): PodSandboxConfig => ({
  linux: { sysctls: { "net.ipv4.tcp_rmem": value } },
});
const runAs = (run_as_user: bigint): PodSandboxConfig => ({
  linux: { security_context: { run_as_user: { value: toLong(run_as_user) } } },
});

describe("a value within its bounds is accepted, the next one refused:", () => {
  test.each<[string, () => void, () => void]>([
    [
      "hostname",
      () => runPod({ hostname: "h".repeat(64) }),
      () => runPod({ hostname: "h".repeat(65) }),
    ],
    ["id mappings", () => runPod(userns(340)), () => runPod(userns(341))],
    ["uid", () => runPod(runAs(0xffff_fffen)), () => runPod(runAs(0xffff_ffffn))],
    ["handler", () => runPod({}, "h".repeat(253)), () => runPod({}, "h".repeat(254))],
    ["quota -1", () => update({ cpu_quota: toLong(-1) }), () => update({ cpu_quota: toLong(-2) })],
    ["quota", () => update({ cpu_quota: toLong(1_000) }), () => update({ cpu_quota: toLong(999) })],
    [
      "shares",
      () => update({ cpu_shares: toLong(262_144) }),
      () => update({ cpu_shares: toLong(262_145) }),
    ],
    ["shares 0", () => update({ cpu_shares: toLong(0) }), () => update({ cpu_shares: toLong(1) })],
    [
      "oom score",
      () => update({ oom_score_adj: toLong(-1_000) }),
      () => update({ oom_score_adj: toLong(-1_001) }),
    ],
    ["cpus", () => update({ cpuset_cpus: "0-3,8" }), () => update({ cpuset_cpus: "0-3," })],
    [
      "page size",
      () => update({ hugepage_limits: [{ page_size: "2MB" }] }),
      () => update({ hugepage_limits: [{ page_size: "big" }] }),
    ],
    [
      "unified",
      () => update({ unified: { "memory.high": "1" } }),
      () => update({ unified: { memory: "1" } }),
    ],
    [
      "log path",
      () => create({ log_path: "./a/../b//0.log" }),
      () => create({ log_path: "a/../.." }),
    ],
    [
      "permissions",
      () => create({ devices: [{ host_path: "/d", permissions: "rwm" }] }),
      () => create({ devices: [{ host_path: "/d", permissions: "rwmr" }] }),
    ],
    [
      "arguments",
      () => create({ args: Array.from({ length: 48 }, () => "x".repeat(131_071)) }),
      () => create({ args: Array.from({ length: 49 }, () => "x".repeat(131_071)) }),
    ],
    [
      "variables",
      () => create({ envs: [{ key: "A", value: Buffer.alloc(131_071, "x") }] }),
      () => create({ envs: [{ key: "A", value: Buffer.alloc(131_072, "x") }] }),
    ],
    [
      "one argument",
      () => create({ args: ["x".repeat(131_071)] }),
      () => create({ args: ["x".repeat(131_072)] }),
    ],
    [
      "port",
      () => validateRequest("PortForward", { port: [1, 65_535] }),
      () => validateRequest("PortForward", { port: [65_536] }),
    ],
    [
      "host_ip",
      () => runPod({ port_mappings: [{ host_ip: "::1" }] }),
      () => runPod({ port_mappings: [{ host_ip: "localhost" }] }),
    ],
    [
      "search domain",
      () => runPod({ dns_config: { searches: [`${"d".repeat(253)}.`] } }),
      () => runPod({ dns_config: { searches: ["d".repeat(255)] } }),
    ],
    ["no sysctl value", () => runPod(sysctl("")), () => runPod(sysctl("\n\n"))],
    ["sysctl value", () => runPod(sysctl("4096\t8192\n")), () => runPod(sysctl("1\n0"))],
    [
      "run_as_group",
      () =>
        runPod({
          linux: {
            security_context: {
              run_as_group: { value: toLong(5) },
              run_as_user: { value: toLong(5) },
            },
          },
        }),
      () => runPod({ linux: { security_context: { run_as_group: { value: toLong(5) } } } }),
    ],
  ])("%s", (_, accepted, refused) => {
    accepted();
    expect(codeAndMessage(refused)).toStartWith("INVALID_ARGUMENT: ");
  });
});

describe("UpdateRuntimeConfig", () => {
  const pod_cidr = (value: string) =>
    validateRequest("UpdateRuntimeConfig", {
      runtime_config: { network_config: { pod_cidr: value } },
    });

  test.each([
    "",
    "10.1.0.0/24",
    "10.1.0.0/24,fd00::/64",
    " 10.1.0.0/24, fd00::/64\t",
    "10.0.0.0/32",
    "fd00::/128",
  ])("accepts pod_cidr %j", (value) => pod_cidr(value));

  test.each([
    "10.1.0.0",
    "10.1.0.0/33",
    "fd00::/129",
    "x/8",
    "10.1.0.0/8/8",
    "10.1.0.0/",
    "10.0.0.0/8,",
    "10.0.0.0 /8",
  ])("refuses pod_cidr %j", (value) => expectRefused("pod_cidr", () => pod_cidr(value)));

  test("refuses more than 16 CIDRs", () => {
    const cidrs = (count: number) => Array.from({ length: count }, () => "10.0.0.0/8").join(",");
    pod_cidr(cidrs(16));
    expectRefused("pod_cidr", () => pod_cidr(cidrs(17)));
  });
});

test("UpdatePodSandboxResources accepts what a kubelet makes of limits less the overhead", () => {
  const resize = (resources: LinuxContainerResources, overhead?: LinuxContainerResources) =>
    validateRequest("UpdatePodSandboxResources", { resources, overhead });
  const less = { cpu_quota: toLong(-25_001), memory_limit_in_bytes: toLong(-125_829_121) };
  resize(less);
  resize({ cpu_quota: toLong(500) });
  expectRefused("overhead.cpu_quota", () => resize({}, less));
  expectRefused("resources.cpu_shares", () => resize({ cpu_shares: toLong(1) }));
});

test("unset and empty fields pass; a whole kubelet-like request passes", () => {
  validateRequest("ListContainers", {});
  validateRequest("ListContainers", { filter: { id: "", state: { state: 1 } } });
  validateRequest("StartContainer", { container_id: "../x" });
  create({
    command: ["sh", "-c"],
    args: ["true"],
    working_dir: "/",
    envs: [{ key: "A", value: Buffer.from("b") }],
    mounts: [{ container_path: "/x", host_path: "/tmp" }],
    log_path: "app/0.log",
    linux: { resources: { cpu_period: toLong(100_000) }, security_context: { run_as_user: null } },
  });
  runPod({
    ...podConfig,
    dns_config: { servers: ["1.1.1.1"] },
    port_mappings: [{ host_port: 80 }],
  });
});

test("a request for a node with 8,192 CPUs passes", () => {
  const cpus = Array.from({ length: 8_192 }, (_, cpu) => cpu);
  const folder = "/sys/devices/system/cpu";
  const masked_paths = cpus.map((cpu) => `${folder}/cpu${cpu}/thermal_throttle`);
  create({ linux: { security_context: { masked_paths } } });
  const cpuset_cpus = cpus.filter((cpu) => cpu % 2 === 0).join(",");
  create({ linux: { resources: { cpuset_cpus } } });
  update({ cpuset_cpus });
});

test("an error never shows a secret, and cuts a long value", () => {
  const auth = { password: `secret\0` };
  const secret = codeAndMessage(() => validateRequest("Pull", { image: "a", auth }));
  expect(secret).toBe("INVALID_ARGUMENT: auth.password is over 65536 bytes or has a NUL");
  const long = codeAndMessage(() => runPod({ hostname: "h".repeat(10_000) }));
  expect(long.length).toBeLessThan(200);
});
