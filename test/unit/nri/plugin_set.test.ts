// Tests the start of pre-installed NRI plugins, and their restart from another folder, with shell scripts as plugins; and
// updates that an external plugin asks for while it is synchronized.
import { afterAll, expect, test } from "bun:test";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { messageOf } from "../../../src/base/errors.ts";
import { silentLog } from "../../../src/base/log.ts";
import type { NriBackend } from "../../../src/nri/apply_updates.ts";
import { UpdateApplier } from "../../../src/nri/apply_updates.ts";
import { EventMessage } from "../../../src/nri/plugin.ts";
import { PluginSet } from "../../../src/nri/plugin_set.ts";
import { readTextIfExists } from "../../../src/sys/file.ts";
import { nri } from "../../../src/proto/nri.js";
import { failure, until } from "../../expect.ts";
import { RawPlugin } from "../../nri/raw_plugin.ts";

const api = nri.pkg.api.v1alpha1;

const dir = mkdtempSync(join(tmpdir(), "isulad-plugins-"));
afterAll(() => rmSync(dir, { recursive: true }));

/** Makes a folder with a plugin that never registers, and writes its process id to FOLDER.pid. */
function pluginFolder(name: string): string {
  const folder = join(dir, name);
  mkdirSync(folder);
  const script = `#!/bin/sh\necho $$ >${folder}.pid\nexec sleep 60\n`;
  writeFileSync(join(folder, "10-test"), script, { mode: 0o755 });
  return folder;
}

/** True if the plugin of the folder was started and runs. */
async function runs(folder: string): Promise<boolean> {
  const pid = (await readTextIfExists(`${folder}.pid`))?.trim();
  if (pid === undefined || pid === "") return false;
  const cmdline = await readTextIfExists(`/proc/${pid}/cmdline`);
  return cmdline !== undefined && cmdline !== "";
}

/** Returns a set that starts the plugins of a folder and listens for others, its configuration, and its updates. */
function pluginSet(pluginPath: string) {
  const config = {
    support: true,
    disableConnections: false,
    socketPath: join(dir, "nri.sock"),
    pluginPath,
    pluginConfigPath: dir,
    registrationTimeoutMs: 2000,
    requestTimeoutMs: 2000,
    synchronizeTimeoutMs: 2000,
    requiredPlugins: [],
  };
  const updated: string[] = [];
  const backend: NriBackend = {
    state: () => Promise.resolve({ pods: [], containers: [] }),
    isLive: () => true,
    update: async ({ id }) => void updated.push(id),
    evict: () => Promise.reject(new Error("there are no containers")),
  };
  const log = silentLog();
  const updates = new UpdateApplier(backend, log);
  return { config, updated, set: new PluginSet({ config, log, backend, updates }) };
}

test.each([
  ["has no --pdeathsig", "exit 1", []],
  ["has --pdeathsig", 'shift 3; exec "$@"', ["--pdeathsig KILL -- "]],
])("plugins start where setpriv %s", async (_, script, prefixes) => {
  const bin = mkdtempSync(join(dir, "bin-"));
  const folder = pluginFolder(`${bin}-plugins`.slice(dir.length));
  const setpriv = `#!/bin/sh\necho "$@" >>${bin}/calls\n${script}\n`;
  writeFileSync(join(bin, "setpriv"), setpriv, { mode: 0o755 });
  const { PATH } = process.env;
  process.env["PATH"] = `${bin}:${PATH}`;
  try {
    const { set } = pluginSet(folder);
    await using _ = set;
    const started = set.start();
    await until("the plugin runs", () => runs(folder));
    await started;
    const calls = readFileSync(join(bin, "calls"), "utf8").split("\n");
    const starts = calls.filter((call) => call.includes(folder));
    const wanted = prefixes.map((prefix) => `${prefix}${folder}/10-test`);
    expect(new Set(starts)).toEqual(new Set(wanted)); // it never registers, and is started again
  } finally {
    process.env["PATH"] = PATH;
  }
});

test("relaunch ends the plugins of the old folder and starts those of the new one, once it can be read", async () => {
  const [one, two] = [pluginFolder("one"), pluginFolder("two")];
  const { config, set } = pluginSet(one);
  await using _ = set;
  const started = set.start();
  while (!(await runs(one))) await Bun.sleep(5);
  await set.relaunch(); // the same folder
  await until("it runs", () => runs(one)); // or has been started again: it never registers
  config.pluginPath = two;
  const relaunched = set.relaunch();
  while (!(await runs(two))) await Bun.sleep(5);
  expect(await runs(one)).toBe(false);
  expect(readFileSync(`${two}.pid`, "utf8")).not.toBe(readFileSync(`${one}.pid`, "utf8"));
  await Promise.all([started, relaunched]);
  // A folder that cannot be read ends nothing, and is tried again once it can.
  config.pluginPath = `${two}.pid`;
  const reason = await set.relaunch().catch((error: unknown) => messageOf(error));
  expect(reason).toContain("ENOTDIR");
  while (!(await runs(two))) await Bun.sleep(5); // restarted: it never registers
  config.pluginPath = join(dir, "three");
  writeFileSync(config.pluginPath, "");
  await set.relaunch().catch(() => {});
  rmSync(config.pluginPath);
  const three = pluginFolder("three");
  const again = set.relaunch();
  while (!(await runs(three))) await Bun.sleep(5);
  expect(await runs(two)).toBe(false);
  await again;
}, 120_000);

test("UpdateContainers is answered while a plugin is synchronized, and right after that", async () => {
  const { config, updated, set } = pluginSet(join(dir, "none"));
  await using _ = set;
  await set.start();
  const ask = async (container_id: string) => {
    const request = { update: [{ container_id, linux: {} }] };
    const bytes = api.UpdateContainersRequest.encode(request).finish();
    const answer = await plugin.call("UpdateContainers", bytes);
    return api.UpdateContainersResponse.decode(answer).failed;
  };
  const after = Promise.withResolvers<unknown>();
  let during: unknown;
  const Synchronize = async () => {
    during = await ask("during").catch(messageOf);
    plugin.hold();
    setTimeout(() => {
      after.resolve(ask("after").catch(messageOf)); // behind the answer, in the same write
      plugin.release();
    });
    return new Uint8Array();
  };
  using plugin = new RawPlugin(config.socketPath, { Synchronize });
  await plugin.register("10", "raw");
  expect([await after.promise, during]).toEqual([[], []]);
  expect(updated).toEqual(["during", "after"]);
});

test("a request fails that a plugin has not answered when the daemon ends", async () => {
  const { config, set } = pluginSet(join(dir, "none"));
  await using ended = set;
  await set.start();
  const asked = Promise.withResolvers<void>();
  const StartContainer = () => {
    asked.resolve();
    return new Promise<Uint8Array>(() => {});
  };
  const Configure = () => api.ConfigureResponse.encode({ events: 0 }).finish();
  using plugin = new RawPlugin(config.socketPath, { Configure, StartContainer });
  await plugin.register("10", "raw");
  await until("it is in service", () => set.plugins.length === 1);
  const message = new EventMessage("StartContainer", {});
  const delivered = failure(set.deliver(set.plugins[0]!, message));
  await asked.promise;
  await ended[Symbol.asyncDispose]();
  expect(await delivered).toMatchObject({ code: "UNAVAILABLE" });
});
