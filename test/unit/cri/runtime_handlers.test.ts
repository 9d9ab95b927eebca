// Tests runtime handlers: those that daemon.json defines, the default one, and user namespaces.
import { afterAll, describe, expect, test } from "bun:test";
import { chmodSync, mkdtempSync, rmSync, statSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { Config } from "../../../src/base/config.ts";
import { silentLog } from "../../../src/base/log.ts";
import type { Context, Handler } from "../../../src/cri/context.ts";
import {
  getHandler,
  handlerOf,
  openHandlers,
  removalRuntime,
  requireInstalled,
  supportsUserNamespaces,
} from "../../../src/cri/runtime_handlers.ts";
import type { RuntimeKind } from "../../../src/state/sandbox.ts";
import { encodeMessage } from "../../../src/base/protobuf.ts";
import { task } from "../../../src/proto/task.js";
import { codeAndMessage } from "../../spec/inputs.ts";

const state = mkdtempSync(join(tmpdir(), "isulad-handlers-"));
afterAll(() => rmSync(state, { recursive: true, force: true }));

const log = silentLog();
async function open(runtimes: object, defaultRuntime = "runc") {
  const config = { state, runtimes, defaultRuntime, systemdCgroup: true } as Config;
  const handlers = openHandlers(config, log);
  for (const handler of handlers.values()) await handler.refresh();
  return handlers;
}
const entry = { path: "/bin/false", runtimeArgs: [] as string[] };

describe("openHandlers()", () => {
  test("opens each handler, and the default one under the empty name as well", async () => {
    const kata = { ...entry, runtimeArgs: ["--kata"], privilegedWithoutHostDevices: true };
    const handlers = await open({ runc: entry, kata: { ...kata, podAnnotations: ["io.*"] } });
    expect([...handlers.keys()]).toEqual(["runc", "kata", ""]);
    expect(handlers.get("")).toBe(handlers.get("runc"));
    const other = await open({ runc: entry, kata: entry }, "kata");
    expect(other.get("")).toBe(other.get("kata"));
    const { command, rules } = handlers.get("kata")!;
    const root = join(state, "runtime/kata");
    expect(command).toEqual({ path: "/bin/false", args: ["--kata"], root, systemdCgroup: true });
    expect(rules).toMatchObject({
      baseSpec: undefined,
      podAnnotations: ["io.*"],
      containerAnnotations: [],
      privilegedWithoutHostDevices: true,
    });
    expect(statSync(root).mode & 0o777).toBe(0o700);
  });

  test("gives an OCI runtime its state folder, keyring, the owner of streams and criu's folders", async () => {
    const top = join(state, "root");
    const criuPaths = { criu_image_path: "/i", criu_work_path: "/w" };
    const own = { root: top, io_uid: 5, no_new_keyring: true, ...criuPaths };
    const handlers = await open({ runc: entry, own: { ...entry, options: own } });
    const { root, noNewKeyring, streamOwner, criu } = handlers.get("own")!.command;
    expect([root, noNewKeyring, streamOwner, criu]).toEqual([
      join(top, state, "own"), // no other daemon's
      true,
      { uid: 5, gid: 0 },
      { images: "/i", work: "/w" },
    ]);
    expect(statSync(root).mode & 0o777).toBe(0o700);
    const plain = handlers.get("runc")!.command;
    expect([plain.noNewKeyring, plain.streamOwner, plain.criu]).toEqual(Array(3).fill(undefined));
  });

  test("refuses a base spec that is missing or unusable, with handler and file", async () => {
    const file = join(state, "base.json");
    writeFileSync(file, "{");
    for (const baseRuntimeSpec of [file, "/no/such/file"]) {
      expect(open({ runc: { ...entry, baseRuntimeSpec } })).rejects.toMatchObject({
        code: "INVALID_ARGUMENT",
        message: expect.stringContaining(`"runtimes.runc.base-runtime-spec" ${baseRuntimeSpec}: `),
      });
    }
    writeFileSync(file, "{}");
    const handlers = await open({ runc: { ...entry, baseRuntimeSpec: file } });
    expect(handlers.get("runc")!.rules.baseSpec).toBeDefined();
  });
});

describe("a handler with a shim", () => {
  const program = join(state, "shim");
  const binary = join(state, "binary");
  const features = (mountOptions: string[]) => {
    const value = Buffer.from(JSON.stringify({ ociVersionMax: "1.3.0", mountOptions }));
    return encodeMessage(task.RuntimeInfo, { features: { type_url: "features", value } });
  };

  function install(file: string, script: string): void {
    writeFileSync(file, `#!/bin/sh\n${script}\n`);
    chmodSync(file, 0o755);
  }

  async function openShim(type: string, options = {}): Promise<Handler> {
    const shim = { type, configPath: "", options };
    const handlers = await open({ runc: entry, x: { ...entry, path: program, shim } });
    return handlers.get("x")!;
  }

  test("of runc has containers of this kernel", async () => {
    rmSync(program, { force: true });
    const opened = await openShim("io.containerd.runc.v2", { io_uid: 1 });
    const { runtimeKind, command, rules } = opened;
    expect(runtimeKind).toBe("shim");
    expect(rules.privilegedWithoutHostDevices).toBe(false);
    const options = { io_uid: 1 };
    expect(command.shim).toEqual({ type: "io.containerd.runc.v2", configPath: "", options });
  });

  test("of another runtime is sandboxed, without user namespaces whatever its features", async () => {
    writeFileSync(join(state, "info"), features(["rro"]));
    install(program, `cat > ${state}/stdin; echo "$@" > ${state}/args; cat ${state}/info`);
    const handler = await openShim("io.containerd.runsc.v1");
    expect(handler).toMatchObject({ runtimeKind: "guest", problem: undefined });
    expect(handler.rules.privilegedWithoutHostDevices).toBe(true);
    expect(handler.support.ociVersion).toBe("1.3.0");
    expect(await Bun.file(join(state, "args")).text()).toBe("-info\n");
    expect(await Bun.file(join(state, "stdin")).text()).toBe("");
    const context = { host: { idmappedLayers: true }, images: { storage: { driver: "overlay" } } };
    const support = { ...handler.support, idmapMounts: true };
    const isSupported = (runtimeKind: RuntimeKind) =>
      supportsUserNamespaces(context as unknown as Context, { support, runtimeKind });
    expect([isSupported("guest"), isSupported("shim")]).toEqual([false, true]);
  });

  test("that has no -info has the features of the OCI runtime behind it", async () => {
    install(program, "echo 'flag provided but not defined: -info' >&2; exit 2");
    install(binary, `echo '{"ociVersionMax":"1.2.1"}'`);
    const old = await openShim("io.containerd.runc.v2", { binary_name: binary });
    expect(old.support.ociVersion).toBe("1.2.1");
    const other = await openShim("io.containerd.kata.v2");
    expect(other.support).toEqual({ recursiveReadOnlyMounts: false, idmapMounts: false });
    expect(other.problem).toBeUndefined();
  });

  test("that is missing is refused with its file until it is installed", async () => {
    rmSync(program, { force: true });
    const handler = await openShim("io.containerd.runsc.v1");
    expect(codeAndMessage(() => requireInstalled("x", handler))).toBe(
      `FAILED_PRECONDITION: runtime handler "x" cannot be used: there is no executable ${program}: install gVisor (gvisor.dev/docs/user_guide/install), or give its path in "runtime-path"`,
    );
    install(program, "exit 2");
    await handler.refresh();
    requireInstalled("x", handler);
  });
});

describe("the handler of a pod", () => {
  const shim = { runtimeKind: "shim" } as Handler;
  const guest = { runtimeKind: "guest" } as Handler;
  const handlers = new Map([
    ["", shim],
    ["gvisor", guest],
  ]);

  test("is the one that it was made by", () => {
    expect(handlerOf({ handlers }, { runtimeHandler: "", runtimeKind: "shim" })).toBe(shim);
    expect(handlerOf({ handlers }, { runtimeHandler: "gvisor", runtimeKind: "guest" })).toBe(guest);
  });

  test("is refused if daemon.json has made another kind of it", () => {
    const found = (runtimeHandler: string) =>
      codeAndMessage(() => handlerOf({ handlers }, { runtimeHandler, runtimeKind: "oci" }));
    expect(found("")).toBe(
      'FAILED_PRECONDITION: the default runtime was of kind "oci" when the pod was made and is of kind "shim" now: remove the pod, or set daemon.json back and restart the daemon',
    );
    expect(found("gvisor")).toMatch(/runtime handler gvisor .* is of kind "guest" now/);
    expect(found("other")).toMatch(/^INVALID_ARGUMENT/);
  });
});

describe("a handler's name", () => {
  const [runc, kata] = [
    { command: { path: "runc" } },
    { command: { path: "kata" } },
  ] as unknown as [Handler, Handler];
  const handlers = new Map([
    ["runc", runc],
    ["kata", kata],
    ["", runc],
  ]);

  test("finds the handler; an unknown one is refused with those that exist", () => {
    expect(getHandler({ handlers }, "kata")).toBe(kata);
    expect(getHandler({ handlers }, "")).toBe(runc);
    expect(codeAndMessage(() => getHandler({ handlers }, "gone"))).toBe(
      'INVALID_ARGUMENT: no runtime handler "gone": daemon.json (runtimes, cri-runtimes) has runc, kata',
    );
  });

  test("finds a runtime for removal even if daemon.json no longer defines it", () => {
    expect(removalRuntime({ handlers }, "kata").path).toBe("kata");
    expect(removalRuntime({ handlers }, "gone").path).toBe("runc");
  });
});

test.each([
  [true, "overlay", true, true],
  [false, "native", true, true],
  [false, "overlay", true, false],
  [true, "overlay", false, false],
  [false, "native", false, false],
])(
  "user namespaces with id-mapped layers %p, driver %s and id-mapped mounts %p: %p",
  (idmappedLayers, driver, idmapMounts, expected) => {
    const context = { host: { idmappedLayers }, images: { storage: { driver } } };
    const handler = { support: { idmapMounts } } as Handler;
    expect(supportsUserNamespaces(context as unknown as Context, handler)).toBe(expected);
  },
);
