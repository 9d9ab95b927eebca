// Runs a daemon with CNI lists and plugins that the test writes, on one bridge.
import { afterAll, beforeAll, beforeEach } from "bun:test";
import { chmodSync, existsSync, mkdirSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { type Daemon, startDaemon } from "../harness.ts";

export let daemon: Daemon;
let plugins: string;

/** One daemon for the file; each test begins without lists. */
export function useNetworks(): void {
  beforeAll(async () => {
    daemon = await startDaemon({ network: false, flags: ["--allow-failpoints"] });
    plugins = join(daemon.dir, "plugins");
    mkdirSync(plugins);
  });
  afterAll(() => daemon?.[Symbol.asyncDispose]());
  beforeEach(() => {
    for (const folder of [daemon.cniDir, plugins]) {
      for (const name of readdirSync(folder)) rmSync(join(folder, name));
    }
  });
}

export type Plugin = Record<string, unknown> & { type: string };

/** The bridge that all of this daemon's networks share, with a subnet of each family that is asked for. */
export function bridge(families: ("4" | "6")[] = ["4", "6"], name = "one"): Plugin {
  const fourth = daemon.subnet.split(".")[2];
  const ranges = {
    "4": [
      {
        subnet: `${daemon.subnet}.0/24`,
        rangeStart: `${daemon.subnet}.${name === "one" ? 2 : 130}`,
      },
    ],
    "6": [{ subnet: `fd00:5ca1:${fourth}:${name === "one" ? 1 : 2}::/64` }],
  };
  const ipam = {
    type: "host-local",
    dataDir: join(daemon.dir, "ipam"),
    ranges: families.map((family) => ranges[family]),
  };
  return { type: "bridge", bridge: daemon.bridge, isGateway: true, ipMasq: true, ipam };
}

export const portmap: Plugin = { type: "portmap", capabilities: { portMappings: true } };

export function writeList(
  name: string,
  list: Plugin[],
  { file = name, cniVersion = "1.0.0" } = {},
): void {
  const text = JSON.stringify({ cniVersion, name: `${daemon.token}-${name}`, plugins: list });
  writeFileSync(join(daemon.cniDir, `${file}.conflist`), text);
}

/** A plugin of some lines of shell, which says yes unless the lines say otherwise. */
export function writePlugin(type: string, script: string): Plugin {
  const file = join(plugins, type);
  const result = '{"cniVersion":"1.1.0","ips":[{"address":"10.255.255.7/32"}]}';
  const lines = ["#!/bin/sh", "input=$(cat)", script, "[ $CNI_COMMAND = ADD ] || exit 0"];
  writeFileSync(file, `${lines.join("\n")}\necho '${result}'\n`);
  chmodSync(file, 0o755);
  return { type };
}

/** Restarts the daemon with more keys of daemon.json and with failpoints. */
export async function configure(more: Record<string, unknown>, failpoints = ""): Promise<void> {
  daemon.writeConfig({ "cni-bin-dir": `${plugins}:/opt/cni/bin:/usr/lib/cni`, ...more });
  await daemon.restart("SIGTERM", failpoints);
}

export async function addresses(podId: string): Promise<string[]> {
  const { status } = await daemon.client.PodSandboxStatus({ pod_sandbox_id: podId });
  const { ip, additional_ips } = status!.network!;
  return [ip!, ...additional_ips!.map((one) => one.ip!)];
}

export type Settings = Record<string, unknown> & {
  Networks: Record<string, Record<string, unknown>>;
};

export async function settings(podId: string): Promise<Settings> {
  const request = { pod_sandbox_id: podId, verbose: true };
  const { info } = await daemon.client.PodSandboxStatus(request);
  return (JSON.parse(info["info"]!) as { networkSettings: Settings }).networkSettings;
}

export async function networkReady(): Promise<{ status: boolean; message: string }> {
  const { status } = await daemon.client.Status({});
  const found = status!.conditions!.find((one) => one.type === "NetworkReady")!;
  return { status: found.status!, message: found.message! };
}

export const files = (folder: string) =>
  existsSync(join(daemon.dir, folder)) ? readdirSync(join(daemon.dir, folder)) : [];
export const leases = () =>
  files("ipam")
    .flatMap((network) => files(join("ipam", network)))
    .filter((name) => /^[\da-f]+[.:]/.test(name));
