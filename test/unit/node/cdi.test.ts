// Tests the lookup of CDI devices in folders of YAML and JSON files.
import { afterAll, beforeEach, describe, expect, test } from "bun:test";
import { mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { readSpec, resolveCdi } from "../../../src/node/cdi.ts";
import { failure } from "../../expect.ts";

const root = mkdtempSync(join(tmpdir(), "cdi-"));
const dirs = ["low", "high"].map((name) => join(root, name)) as [string, string];
const [low, high] = dirs;
beforeEach(() => {
  for (const dir of dirs) {
    rmSync(dir, { recursive: true, force: true });
    mkdirSync(dir);
  }
});
afterAll(() => rmSync(root, { recursive: true }));

function spec(env: string, names = ["0"], more: object = {}): string {
  const devices = names.map((name) => ({ name, containerEdits: { env: [`${env}_${name}=1`] } }));
  return JSON.stringify({ cdiVersion: "0.6.0", kind: "v.com/c", devices, ...more });
}

const yaml = `# what a vendor's tool writes
cdiVersion: "0.5.0"
kind: vendor.example/gpu
containerEdits:
  env: [ALL=1]
  hooks:
    - hookName: createContainer
      path: /bin/true
      args: ["true", "--flag"]
devices:
  - name: "0"
    containerEdits:
      deviceNodes:
        - path: /dev/gpu0
          hostPath: /dev/null
          permissions: rw
          uid: 5
        - path: /dev/given
          type: b
          major: 8
          minor: 1
      mounts:
        - hostPath: /etc
          containerPath: /vendor/etc
          options: [ro, nosuid, rbind]
  - name: all
    containerEdits:
      additionalGids: [44]
`;

describe("resolveCdi()", () => {
  test("reads YAML and JSON, and completes devices from the node", async () => {
    writeFileSync(join(low, "gpu.yaml"), yaml);
    writeFileSync(join(low, "c.json"), spec("C"));
    const edits = await resolveCdi(
      ["vendor.example/gpu=0", "vendor.example/gpu=all", "v.com/c=0"],
      dirs,
    );
    expect(edits).toEqual({
      env: ["ALL=1", "C_0=1"], // the file's own edits once
      devices: [
        {
          node: { path: "/dev/gpu0", type: "c", major: 1, minor: 3, fileMode: 0o666 },
          hostPath: "/dev/null",
          uid: 5,
          gid: undefined,
          access: "rw",
        },
        {
          node: { path: "/dev/given", type: "b", major: 8, minor: 1, fileMode: 0o666 },
          hostPath: "/dev/given",
          uid: undefined,
          gid: undefined,
          access: "rwm",
        },
      ],
      mounts: [
        {
          destination: "/vendor/etc",
          type: "bind",
          source: "/etc",
          options: ["ro", "nosuid", "rbind"],
        },
      ],
      hooks: [{ name: "createContainer", hook: { path: "/bin/true", args: ["true", "--flag"] } }],
      gids: [44],
    });
  });

  test("mounts without an option of a bind mount are bind mounts, unless they have another type", async () => {
    const mounts = [
      { hostPath: "/etc", containerPath: "/plain" },
      { hostPath: "/etc", containerPath: "/typed", type: "bind", options: ["ro"] },
      { hostPath: "/etc", containerPath: "/named", options: ["ro", "bind"] },
      { hostPath: "tmpfs", containerPath: "/memory", type: "tmpfs", options: ["size=1m"] },
    ];
    const devices = [{ name: "0", containerEdits: { mounts } }];
    const text = JSON.stringify({ cdiVersion: "0.6.0", kind: "v.com/m", devices });
    writeFileSync(join(low, "mounts.json"), text);
    const edits = await resolveCdi(["v.com/m=0"], dirs);
    expect(edits.mounts.map(({ type, options }) => [type, options])).toEqual([
      ["bind", ["rbind"]],
      ["bind", ["rbind", "ro"]],
      ["bind", ["ro", "bind"]],
      ["tmpfs", ["size=1m"]],
    ]);
  });

  test("prefers a later folder, and refuses a device that one folder defines twice", async () => {
    writeFileSync(join(low, "a.json"), spec("LOW", ["0", "1"]));
    writeFileSync(join(low, "b.json"), spec("TWICE", ["1", "2"]));
    writeFileSync(join(high, "a.json"), spec("HIGH", ["0"]));
    expect((await resolveCdi(["v.com/c=0", "v.com/c=2"], dirs)).env).toEqual([
      "HIGH_0=1",
      "TWICE_2=1",
    ]);
    const error = await failure(resolveCdi(["v.com/c=1"], dirs));
    expect(error.code).toBe("INVALID_ARGUMENT");
    expect(error.message).toContain("a.json and in");
    writeFileSync(join(high, "b.json"), spec("HIGH", ["1"]));
    expect((await resolveCdi(["v.com/c=1"], dirs)).env).toEqual(["HIGH_1=1"]);
  });

  test("names folders and unusable files when a device is not defined", async () => {
    writeFileSync(join(low, "bad.json"), "{");
    writeFileSync(join(low, "ok.json"), spec("OK"));
    writeFileSync(join(low, "ignored.txt"), spec("TXT", ["3"]));
    expect((await resolveCdi(["v.com/c=0"], dirs)).env).toEqual(["OK_0=1"]);
    const error = await failure(resolveCdi(["v.com/c=3"], [...dirs, join(root, "none")]));
    expect(error.code).toBe("INVALID_ARGUMENT");
    for (const word of ["v.com/c=3", low, high, "bad.json"]) expect(error.message).toContain(word);
  });

  test("refuses a device whose parts are missing on the node, or with unsupported edits", async () => {
    const edits = {
      missing: { deviceNodes: [{ path: "/dev/no-such-device" }] },
      file: { deviceNodes: [{ path: "/etc/passwd" }] },
      type: { deviceNodes: [{ path: "/dev/null", type: "b" }] },
      mount: { mounts: [{ hostPath: "/no/such", containerPath: "/x" }] },
      hook: { hooks: [{ hookName: "prestart", path: "/no/such" }] },
      net: { netDevices: [{ hostInterfaceName: "eth9", name: "eth1" }] },
      rdt: { intelRdt: { closID: "x" } },
    };
    const devices = Object.entries(edits).map(([name, containerEdits]) => ({
      name,
      containerEdits,
    }));
    const text = JSON.stringify({ cdiVersion: "1.1.0", kind: "v.com/c", devices });
    writeFileSync(join(low, "x.json"), text);
    for (const name of Object.keys(edits)) {
      const error = await failure(resolveCdi([`v.com/c=${name}`], dirs));
      expect(error.code).toBe("FAILED_PRECONDITION");
      expect(error.message).toContain(`CDI device v.com/c=${name} (${join(low, "x.json")})`);
    }
  });
});

describe("readSpec()", () => {
  test.each([
    ["a version of the future", spec("X", ["0"], { cdiVersion: "2.0.0" }), "cdiVersion"],
    ["an invalid kind", spec("X", ["0"], { kind: "gpu" }), "kind"],
    ["an invalid device name", spec("X", ["a b"]), "devices.0.name"],
    ["no devices", spec("X", []), "devices"],
    ["an unknown key", spec("X", ["0"], { extra: 1 }), "extra"],
    ["an environment without a name", spec("=X"), "devices.0.containerEdits.env.0"],
  ])("refuses %s", (_, text, field) => {
    const file = join(low, "x.json");
    writeFileSync(file, text);
    expect(() => readSpec(file)).toThrow(field);
  });

  test("reads a mode with a leading zero as octal, as Go's libraries do", () => {
    const file = join(low, "x.yaml");
    const modeOf = (mode: string) => {
      const edits = `{deviceNodes: [{path: /dev/null, fileMode: ${mode}}]}`;
      const devices = `[{name: a, containerEdits: ${edits}}]`;
      writeFileSync(file, `cdiVersion: 0.6.0\nkind: v.com/c\ndevices: ${devices}\n`);
      return readSpec(file).devices[0]!.containerEdits.deviceNodes[0]!.fileMode;
    };
    expect(["0660", "0o660", "432", "0"].map(modeOf)).toEqual([0o660, 0o660, 0o660, 0]);
    expect(() => modeOf('"0660"')).toThrow("fileMode");
  });

  test("takes null, which YAML writes as nothing, as absent", () => {
    const file = join(low, "x.yaml");
    const edits = "{env: [A=1], mounts: , hooks: null}";
    const devices = `[{name: a, annotations: , containerEdits: ${edits}}]`;
    writeFileSync(file, `cdiVersion: 0.6.0\nkind: v.com/c\nannotations:\ndevices: ${devices}\n`);
    expect(readSpec(file).devices[0]!.containerEdits).toMatchObject({ env: ["A=1"], mounts: [] });
  });

  test("bounds expanding YAML and endless files", () => {
    const bomb = ["a: &a [x,x,x,x,x,x,x,x,x]"];
    for (let i = 0; i < 12; i++) {
      const [name, last] = ["bcdefghijklmn"[i]!, "abcdefghijklm"[i]!];
      bomb.push(`${name}: &${name} [${Array(9).fill(`*${last}`).join(",")}]`);
    }
    const file = join(low, "bomb.yaml");
    writeFileSync(file, bomb.join("\n"));
    expect(() => readSpec(file)).toThrow();
    symlinkSync("/dev/zero", join(low, "zero.yaml"));
    expect(() => readSpec(join(low, "zero.yaml"))).toThrow("over");
  });
});
