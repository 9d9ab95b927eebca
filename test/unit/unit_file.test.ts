// Tests dist/isulad-ts.service: what keeps the daemon up, and what pods would inherit.
import { expect, test } from "bun:test";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { defaultHost } from "../../src/cli/client.ts";
import { groups } from "../../src/cli/commands.ts";
import { ungrouped } from "../../src/cli/help.ts";
import { unitFiles } from "../../src/install/files.ts";

const root = join(import.meta.dirname, "../..");
const lines = readFileSync(join(root, "dist/isulad-ts.service"), "utf8").split("\n");

/** The values of each key, in order, by section. */
function sections(): Record<string, Record<string, string[]>> {
  const found: Record<string, Record<string, string[]>> = {};
  let section = "";
  for (const line of lines) {
    if (line === "" || line.startsWith("#")) continue;
    const [, name] = /^\[(\w+)\]$/.exec(line) ?? [];
    if (name !== undefined) {
      section = name;
      found[section] = {};
      continue;
    }
    const [, key = "", value = ""] = /^(\w+)=(.*)$/.exec(line) ?? [];
    expect([line, key]).not.toEqual([line, ""]);
    (found[section]![key] ??= []).push(value);
  }
  return found;
}

const { Unit, Service, Install } = sections() as {
  [Name in "Unit" | "Service" | "Install"]: Record<string, string[]>;
};

test("the unit is started again after any end, however often it fails", () => {
  expect(Unit["StartLimitIntervalSec"]).toEqual(["0"]);
  expect(Service).toMatchObject({ Restart: ["always"], RestartSec: ["5"] });
  expect(Service["StartLimitIntervalSec"]).toBeUndefined(); // systemd would ignore it there
  expect(Install["WantedBy"]).toEqual(["multi-user.target"]);
});

test("pods outlive a stop of the unit", () => {
  expect(Service).toMatchObject({
    KillMode: ["process"],
    Delegate: ["yes"],
    OOMPolicy: ["continue"],
  });
});

test("a reload asks this daemon, also where crictl's file names another runtime", () => {
  expect(Service["Environment"]).toEqual([`ISULAD_HOST=${defaultHost}`]);
  const keys = Object.keys(Service); // systemd: settings of a later EnvironmentFile= override Environment=
  expect(keys.indexOf("Environment")).toBeLessThan(keys.indexOf("EnvironmentFile"));
});

test("environment files are optional, and nothing of them loads code into the daemon", () => {
  expect(Service["EnvironmentFile"]?.length).toBeGreaterThan(0);
  for (const file of Service["EnvironmentFile"] ?? []) expect(file).toMatch(/^-\/etc\//);
  expect(Service["UnsetEnvironment"]?.[0]?.split(" ")).toContain("LD_PRELOAD");
});

test("a reload runs a command that exists, of the program that is started", () => {
  const [program, command, ...rest] = Service["ExecReload"]![0]!.split(" ");
  expect(Service["ExecStart"]).toEqual([`${program} --config /etc/isulad/daemon.json`]);
  expect(Object.keys(ungrouped(groups))).toContain(command!);
  expect(rest).toEqual([]);
});

test("the page that the unit names is installed with it", () => {
  const paths = unitFiles().map(({ path }) => `file://${path}`);
  expect(paths).toContain(Unit["Documentation"]![0]!);
});

test("nothing restricts what monitor and containers inherit from the unit", () => {
  const inherited = [
    /^(Private|Protect|Restrict|SystemCall|Bind|Root|Mount|Capability|Ambient|Device|IPAddress)/,
    /^(ReadOnly|ReadWrite|Inaccessible|NoExec|Exec)Paths$|^TemporaryFileSystem$/,
    /^(LockPersonality|MemoryDenyWriteExecute|NoNewPrivileges|SecureBits|DynamicUser|User|Group)$/,
  ];
  const isRestrictive = (key: string) => inherited.some((names) => names.test(key));
  for (const key of ["PrivateTmp", "ProtectSystem", "RestrictSUIDSGID", "NoNewPrivileges"]) {
    expect(isRestrictive(key)).toBe(true);
  }
  expect(Object.keys(Service).filter(isRestrictive)).toEqual([]);
});
