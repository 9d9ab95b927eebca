// Tests runtime handlers: those that daemon.json defines, the default one, and user namespaces.
import { afterAll, describe, expect, test } from "bun:test";
import { mkdtempSync, rmSync, statSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { Config } from "../../../src/base/config.ts";
import { silentLog } from "../../../src/base/log.ts";
import type { Context, Handler } from "../../../src/cri/context.ts";
import {
  getHandler,
  openHandlers,
  removalRuntime,
  supportsUserNamespaces,
} from "../../../src/cri/runtime_handlers.ts";
import { codeAndMessage } from "../../spec/inputs.ts";

const state = mkdtempSync(join(tmpdir(), "isulad-handlers-"));
afterAll(() => rmSync(state, { recursive: true, force: true }));

const log = silentLog();
const open = (runtimes: object, defaultRuntime = "runc") =>
  openHandlers({ state, runtimes, defaultRuntime, systemdCgroup: true } as Config, log);
const entry = { path: "/bin/false", runtimeArgs: [] as string[] };

describe("openHandlers()", () => {
  test("opens each handler, and the default one under the empty name as well", async () => {
    const kata = { ...entry, runtimeArgs: ["--kata"], privilegedWithoutHostDevices: true };
    const handlers = await open({ runc: entry, kata: { ...kata, podAnnotations: ["io.*"] } });
    expect([...handlers.keys()]).toEqual(["runc", "kata", ""]);
    expect(handlers.get("")).toBe(handlers.get("runc"));
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
