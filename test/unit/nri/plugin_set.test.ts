// Tests the restart of pre-installed NRI plugins from another folder, with shell scripts as plugins.
import { afterAll, expect, test } from "bun:test";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { messageOf } from "../../../src/base/errors.ts";
import { silentLog } from "../../../src/base/log.ts";
import type { NriBackend } from "../../../src/nri/apply_updates.ts";
import { UpdateApplier } from "../../../src/nri/apply_updates.ts";
import { PluginSet } from "../../../src/nri/plugin_set.ts";
import { readTextIfExists } from "../../../src/sys/file.ts";

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

test("relaunch ends the plugins of the old folder and starts those of the new one, once it can be read", async () => {
  const [one, two] = [pluginFolder("one"), pluginFolder("two")];
  const config = {
    support: true,
    disableConnections: true,
    socketPath: join(dir, "nri.sock"),
    pluginPath: one,
    pluginConfigPath: dir,
    registrationTimeoutMs: 2000,
    requestTimeoutMs: 2000,
    synchronizeTimeoutMs: 2000,
    requiredPlugins: [],
  };
  const unused = () => Promise.reject(new Error("there are no containers"));
  const state = () => Promise.resolve({ pods: [], containers: [] });
  const backend: NriBackend = { state, isLive: () => false, update: unused, evict: unused };
  const log = silentLog();
  await using set = new PluginSet({
    config,
    log,
    backend,
    updates: new UpdateApplier(backend, log),
  });
  const started = set.start();
  while (!(await runs(one))) await Bun.sleep(5);
  await set.relaunch(); // the same folder
  expect(await runs(one)).toBe(true);
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
