// Tests decisions on records: log paths, stop signals, owners, cgroups, pruned images, supported limits,
// retries.
import { describe, expect, test } from "bun:test";
import { CriError } from "../../../src/base/errors.ts";
import { toLong } from "../../../src/base/int64.ts";
import { containerCgroup, hasCgroup, limitPod } from "../../../src/cri/cgroups.ts";
import { stopSignal } from "../../../src/cri/container_create.ts";
import type { Context } from "../../../src/cri/context.ts";
import { imageStatus, listImages } from "../../../src/cri/image.ts";
import { getImage, imageMessage, registryAuth } from "../../../src/cri/image_records.ts";
import { callMonitorWithRetry } from "../../../src/cri/monitor_retry.ts";
import { pruneImages } from "../../../src/cri/node_images.ts";
import { isReadOnlyCall } from "../../../src/base/read_only_calls.ts";
import { rootfsOwner } from "../../../src/cri/rootfs_owner.ts";
import { supportedResources } from "../../../src/cri/supported_resources.ts";
import { runtime } from "../../../src/proto/messages.js";
import type { ImageRecord } from "../../../src/image/store.ts";
import { codeAndMessage, host } from "../../spec/inputs.ts";
import { logPath } from "../../../src/state/container.ts";
import { capturedLog, containerRecord, recordStore, sandboxRecord } from "../fakes.ts";

describe("a new container", () => {
  test.each([
    ["/logs", "app/0.log", "/logs/app/0.log"],
    ["/logs", "", ""],
    ["", "app/0.log", ""],
  ])("with log_directory %j and log_path %j logs to %j", (log_directory, log_path, path) => {
    expect(logPath({ log_path }, { log_directory })).toBe(path);
  });

  test.each([
    [runtime.v1.Signal.SIGNAL_SIGINT, "SIGUSR1", "SIGINT"],
    [0, "SIGUSR1", "SIGUSR1"],
    [0, undefined, "SIGTERM"],
  ])(
    "with stop_signal %p and the image's %p stops with %s",
    (stop_signal, StopSignal, expected) => {
      const signal = stopSignal({ stop_signal }, { config: { StopSignal } } as ImageRecord);
      expect(signal.replace(/^SIG/, "")).toBe(expected.replace(/^SIG/, ""));
    },
  );

  test("is refused if its image has an unknown stop signal", () => {
    const image = { config: { StopSignal: "x" } } as ImageRecord;
    expect(() => stopSignal({}, image)).toThrow();
  });
});

describe("rootfsOwner()", () => {
  const ids = [{ container_id: 0, host_id: 100_000, length: 65_536 }];
  const namespace_options = { userns_options: { uids: ids, gids: ids } };
  const config = { linux: { security_context: { namespace_options } } };
  const namespaces = { user: { path: "/user", inode: "1" } };

  test("is the root of the pod's user namespace, if it has one", () => {
    expect(rootfsOwner(sandboxRecord({ config, namespaces }))).toEqual({
      userns: "/user",
      uid: 100_000,
      gid: 100_000,
      count: 65_536,
    });
    expect(rootfsOwner(sandboxRecord({ namespaces }))).toBeUndefined();
    expect(rootfsOwner(sandboxRecord({ config }))).toBeUndefined();
  });
});

describe("cgroups", () => {
  const limited: string[] = [];
  const context = (sandboxes: ReturnType<typeof sandboxRecord>[]) =>
    ({
      host,
      config: {
        disableHugetlbController: false,
        tolerateMissingHugetlbController: true,
        runtimeTimeoutMs: 100,
      },
      sandboxes: recordStore(sandboxes),
      cgroup: {
        name: "cgroupfs",
        pathsOf: (path: string) => ({ own: path }),
        containerPaths: (...ids: string[]) => ({ own: ids.join("/") }),
        limitPod: (id: string) => limited.push(id),
      },
    }) as unknown as Context;
  const systemd = sandboxRecord({ cgroup: { driver: "systemd", parent: "" } });

  test("of the other driver no longer exist", () => {
    expect(hasCgroup(context([]), systemd)).toBe(false);
    expect(hasCgroup(context([]), sandboxRecord())).toBe(true);
    expect(containerCgroup(context([systemd]), containerRecord())).toEqual({});
    // Of a container whose pod's record is lost, too: the path is none of this driver.
    const lone = containerRecord({ cgroupDriver: "systemd", cgroupsPath: "a.slice:p:c1" });
    expect(containerCgroup(context([]), lone)).toEqual({});
  });

  test("of this node say nothing about containers in a guest", () => {
    const inGuest = containerRecord({ runtimeKind: "guest", cgroupsPath: "/chosen" });
    expect(containerCgroup(context([sandboxRecord()]), inGuest)).toEqual({});
  });

  test("of a container are below its pod's, or where its record says", () => {
    const pod = context([sandboxRecord({ cgroup: { driver: "cgroupfs", parent: "/kube" } })]);
    const own = containerRecord({ cgroupsPath: "/chosen" });
    const paths = (of: Context, container = containerRecord()): object =>
      containerCgroup(of, container);
    expect(paths(pod)).toEqual({ own: "/kube/p1/c1" });
    expect(paths(pod, own)).toEqual({ own: "/chosen" });
    expect(paths(context([]), own)).toEqual({ own: "/chosen" });
    expect(paths(context([]))).toEqual({});
  });

  test("of pods are limited only if the daemon owns them", async () => {
    await limitPod(context([]), sandboxRecord({ cgroup: { driver: "cgroupfs", parent: "/kube" } }));
    expect(limited).toEqual([]);
    await limitPod(context([]), sandboxRecord());
    expect(limited).toEqual(["p1"]);
  });
});

describe("images", () => {
  const image = (id: string, more: Partial<ImageRecord> = {}) =>
    ({
      id,
      repoTags: [],
      repoDigests: [],
      sizeBytes: 5n,
      config: {},
      ...more,
    }) as unknown as ImageRecord;
  const records = ["used", "volume", "pinned", "unused"].map((id) => image(id));
  const removed: string[] = [];
  const images = {
    ...recordStore(records),
    pinned: ({ id }: ImageRecord) => id === "pinned",
    freedBy: (ids: ReadonlySet<string>) => BigInt(ids.size),
    remove: async (id: string) => void removed.push(id),
  } as unknown as Context["images"];

  test("are found, or reported as missing", () => {
    expect(getImage({ images }, "used").id).toBe("used");
    expect(codeAndMessage(() => getImage({ images }, "none"))).toStartWith("NOT_FOUND: image none");
  });

  test("have the user of their configuration, by id or by name", () => {
    const user = (User: string) => {
      const record = image("a", { config: { User, architecture: "", os: "" } });
      const { uid, username } = imageMessage(record, false);
      return [uid === undefined ? undefined : Number(uid?.value), username];
    };
    expect([user("5"), user("web:7")]).toEqual([
      [5, ""],
      [undefined, "web"],
    ]);
  });

  test("show their configuration with every digit", async () => {
    const config = '{"config":{"Healthcheck":{"Interval":9007199254740993}}}';
    const detailsOf = async () => ({ layers: [], config });
    const find = () => image("a", { layers: [], pulledAtNs: 0n });
    const known = { detailsOf, find, pinned: () => false };
    const context = { images: known, handlers: new Map([["", {}]]) } as unknown as Context;
    const request = { image: { image: "a" }, verbose: true };
    expect((await imageStatus(context, request)).info?.["info"]).toContain(config);
  });

  test("are listed as pinned or not as the configuration has it now, which a reload changes", async () => {
    let pinned = "";
    const now = { ...recordStore(records), pinned: ({ id }: ImageRecord) => id === pinned };
    const context = { images: now } as unknown as Context;
    const listed = async () => {
      const { bytes } = await listImages(context, {}, { signal: new AbortController().signal });
      const all = runtime.v1.ListImagesResponse.decode(bytes).images;
      return all.filter((one) => one.pinned).map(({ id }) => id);
    };
    expect(await listed()).toEqual([]);
    pinned = "used";
    expect(await listed()).toEqual(["used"]);
    pinned = "volume";
    expect(await listed()).toEqual(["volume"]);
  });

  test("are pruned unless a container uses them, as root or volume, or they are pinned", async () => {
    const config = { mounts: [{ image: { image_ref: "volume" } }, {}] };
    const used = containerRecord({ image: { id: "used", name: "", ref: "" }, config });
    const containers = recordStore([used]) as unknown as Context["containers"];
    const dry = await pruneImages({ images, containers }, { dry_run: true });
    expect([dry.images?.map(({ id }) => id), removed]).toEqual([["unused"], []]);
    await pruneImages({ images, containers }, {});
    expect(removed).toEqual(["unused"]);
  });

  test("are pulled with the request's credentials, or none", () => {
    expect(registryAuth(null)).toBeUndefined();
    expect(registryAuth({ username: "u", server_address: "s" })).toMatchObject({
      username: "u",
      serverAddress: "s",
    });
  });
});

describe("supportedResources()", () => {
  const requested = { memory_swap_limit_in_bytes: toLong(5), cpu_shares: toLong(2) };
  const config = { tolerateMissingHugetlbController: true, disableHugetlbController: false };

  test("drops the swap limit where the kernel does not account swap, and logs it", () => {
    const { log, lines } = capturedLog("info");
    const on = (swapLimit: boolean) =>
      supportedResources({ host: { ...host, swapLimit }, log, config }, "c1", requested);
    expect(on(true)).toBe(requested);
    expect(lines).toEqual([]);
    expect(Number(on(false)?.memory_swap_limit_in_bytes ?? 0)).toBe(0);
    expect(lines.join("")).toContain("memory_swap_limit_in_bytes is ignored container=c1 bytes=5");
  });

  test.each([
    ["2MB", true, false, "kept"],
    ["2MB", false, false, "kept"],
    ["2MB", true, true, "dropped"],
    ["", true, false, "dropped"],
    ["", false, false, "kept"],
    ["", false, true, "dropped"],
  ])("with page sizes %p, tolerant %p and disabled %p, huge pages are %s", (size, ...given) => {
    const [tolerateMissingHugetlbController, disableHugetlbController, outcome] = given;
    const { log, lines } = capturedLog("info");
    const node = {
      host: { ...host, hugepageSizes: size === "" ? [] : [size] },
      log,
      config: { tolerateMissingHugetlbController, disableHugetlbController },
    };
    const limitsOf = (limit: number) => {
      const hugepage_limits = [{ page_size: "2MB", limit: toLong(limit) }];
      return supportedResources(node, "c1", { hugepage_limits, cpu_shares: toLong(2) });
    };
    const isKept = outcome === "kept";
    expect(limitsOf(0)).toMatchObject({ hugepage_limits: { length: isKept ? 1 : 0 } });
    expect(lines).toEqual([]); // a kubelet sends zeros
    expect(limitsOf(7)).toMatchObject({ hugepage_limits: { length: isKept ? 1 : 0 } });
    const told = lines.filter((line) => line.includes("hugepage_limits are ignored container=c1"));
    expect(told).toHaveLength(isKept ? 0 : 1);
  });
});

describe("callMonitorWithRetry()", () => {
  const failing = (times: number, code: "UNAVAILABLE" | "UNKNOWN") => {
    let calls = 0;
    const call = async () => {
      if (++calls <= times) throw new CriError(code, "no monitor");
    };
    const monitor = { call } as unknown as Context["monitor"];
    const done = callMonitorWithRetry({ monitor }, "kill", { id: "c1", signal: 9 });
    return done.then(
      () => [calls, "OK"],
      (error: CriError) => [calls, error.code],
    );
  };

  test("repeats a call while the monitor is being replaced, five times at most", async () => {
    const outcomes = await Promise.all([
      failing(0, "UNAVAILABLE"),
      failing(2, "UNAVAILABLE"),
      failing(9, "UNAVAILABLE"),
      failing(1, "UNKNOWN"),
    ]);
    expect(outcomes).toEqual([
      [1, "OK"],
      [3, "OK"],
      [5, "UNAVAILABLE"],
      [1, "UNKNOWN"],
    ]);
  });
});

test.each([
  ["Version", true],
  ["ListContainers", true],
  ["StreamImages", true],
  ["PodSandboxStatus", true],
  ["ContainerStats", true],
  ["GetContainerEvents", true],
  ["RunPodSandbox", false],
  ["ExecSync", false],
  ["PullImage", false],
])("%s is a read-only call: %p", (rpc, expected) => {
  expect(isReadOnlyCall(rpc)).toBe(expected);
});
