// Tests the parsing of CNI lists, and the choice of a list in the conf dir.
import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import { mkdirSync, mkdtempSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { ConfDir, parseConfList } from "../../../src/node/cni_conf.ts";

const list = (name: string) =>
  JSON.stringify({ cniVersion: "1.0.0", name, plugins: [{ type: "bridge", mtu: 1400 }] });

describe("parseConfList", () => {
  test("keeps a list's plugins with all their keys, in order", () => {
    const text = JSON.stringify({
      cniVersion: "0.4.0",
      name: "pods",
      disableCheck: true,
      plugins: [
        { type: "bridge", ipam: { type: "host-local" }, "x-unknown": [1, { a: null }] },
        { type: "portmap", capabilities: { portMappings: true } },
      ],
    });
    expect(parseConfList(text, "10-a.conflist")).toEqual({
      name: "pods",
      cniVersion: "0.4.0",
      plugins: JSON.parse(text).plugins,
    });
  });

  test.each([".conf", ".json"])("reads a single plugin of a %s file as a list of one", (ending) => {
    const text = '{"cniVersion":"0.3.1","name":"one","type":"ptp"}';
    expect(parseConfList(text, `a${ending}`)).toEqual({
      name: "one",
      cniVersion: "0.3.1",
      plugins: [{ cniVersion: "0.3.1", name: "one", type: "ptp" }],
    });
  });

  test("chooses the newest supported version that a list offers", () => {
    const text = (offered: string[], version = "0.4.0") =>
      JSON.stringify({
        cniVersion: version,
        cniVersions: offered,
        name: "n",
        plugins: [{ type: "a" }],
      });
    expect(parseConfList(text(["1.0.0", "1.1.0", "9.0.0"]), "a.conflist").cniVersion).toBe("1.1.0");
    expect(parseConfList(text(["0.3.1"], "9.0.0"), "a.conflist").cniVersion).toBe("0.3.1");
  });

  test.each([
    ["half a file", '{"cniVersion":"1.0.0","na', "is not JSON"],
    ["no object", "[]", "must contain an object"],
    ["no name", '{"plugins":[{"type":"a"}]}', "name is missing"],
    ["a name with a slash", '{"name":"a/b","plugins":[{"type":"a"}]}', "name must begin"],
    ["no plugins", '{"name":"a"}', "plugins is missing"],
    ["an empty list", '{"name":"a","plugins":[]}', "plugins must contain at least one plugin"],
    ["a plugin without type", '{"name":"a","plugins":[{}]}', "plugins.0.type is missing"],
    [
      "a type that is a path",
      '{"name":"a","plugins":[{"type":"../sh"}]}',
      "plugins.0.type must be a file name",
    ],
    [
      "a capability that is not a boolean",
      '{"name":"a","plugins":[{"type":"a","capabilities":{"dns":"yes"}}]}',
      "plugins.0.capabilities.dns must be true or false",
    ],
    [
      "a version of the future",
      '{"cniVersion":"2.0.0","name":"a","plugins":[{"type":"a"}]}',
      "cniVersion 2.0.0 is not supported (supported:",
    ],
  ])("refuses %s and says where", (_, text, message) => {
    expect(() => parseConfList(text, "10-a.conflist")).toThrow(
      expect.objectContaining({
        code: "INVALID_ARGUMENT",
        message: expect.stringContaining(`CNI configuration 10-a.conflist: ${message}`),
      }),
    );
  });
});

describe("ConfDir", () => {
  let dir = "";
  beforeEach(() => {
    dir = mkdtempSync(join(tmpdir(), "cni-conf-"));
  });
  afterEach(() => rmSync(dir, { recursive: true, force: true }));

  test("chooses the first list in lexical order and ignores other files", () => {
    const conf = new ConfDir(dir);
    writeFileSync(join(dir, "20-b.conflist"), list("b"));
    writeFileSync(join(dir, "05-x.conflist.tmp"), "{");
    writeFileSync(join(dir, ".00-x.conflist"), "{");
    mkdirSync(join(dir, "00-folder.conf"));
    expect(conf.current().list?.name).toBe("b");
    writeFileSync(join(dir, "10-a.conflist"), list("a"));
    expect(conf.current().list?.name).toBe("a");
    rmSync(join(dir, "10-a.conflist"));
    expect(conf.current().list?.name).toBe("b");
  });

  test("keeps the last valid list while a new one is broken, and reports the problem", () => {
    const conf = new ConfDir(dir);
    writeFileSync(join(dir, "10-a.conflist"), list("a"));
    conf.current();
    writeFileSync(join(dir, "10-a.conflist"), list("a2").slice(0, 30));
    expect(conf.current()).toMatchObject({
      list: { name: "a" },
      problem: expect.stringContaining("10-a.conflist: is not JSON"),
    });
    writeFileSync(join(dir, "10-a.conflist"), list("a2"));
    const state = conf.current();
    expect(state.list?.name).toBe("a2");
    expect(state.problem).toBeUndefined();
  });

  test("sees a list that is renamed into place", () => {
    const conf = new ConfDir(dir);
    writeFileSync(join(dir, "10-a.conflist"), list("a"));
    conf.current();
    writeFileSync(join(dir, "new"), list("b"));
    renameSync(join(dir, "new"), join(dir, "10-a.conflist"));
    expect(conf.current().list?.name).toBe("b");
  });

  describe("adds the plugins of the folder with the network's name", () => {
    const inFolder = (file: string, content: object | string) => {
      mkdirSync(join(dir, "pods"), { recursive: true });
      const text = typeof content === "string" ? content : JSON.stringify(content);
      writeFileSync(join(dir, "pods", file), text);
    };
    const writeList = (more: object, file = "10-a.conflist") =>
      writeFileSync(join(dir, file), JSON.stringify({ name: "pods", ...more }));
    const types = (conf: ConfDir) => conf.current().list?.plugins.map(({ type }) => type);
    const bridge = { plugins: [{ type: "bridge" }] };

    test("behind its own, in the order of the files, and sees each change", () => {
      writeList(bridge);
      const conf = new ConfDir(dir);
      expect(types(conf)).toEqual(["bridge"]);
      inFolder("20-b.conf", { type: "tuning", mtu: 1400 });
      inFolder("10-a.conf", { type: "portmap" });
      for (const ignored of [".05-x.conf", "30-c.conflist", "40-d.json"]) inFolder(ignored, "{");
      expect(types(conf)).toEqual(["bridge", "portmap", "tuning"]);
      const state = conf.current();
      expect(state.list?.plugins[2]).toEqual({ type: "tuning", mtu: 1400 });
      expect(conf.current()).toBe(state);
      inFolder("20-b.conf", { type: "vrf" });
      expect(types(conf)).toEqual(["bridge", "portmap", "vrf"]);
      rmSync(join(dir, "pods"), { recursive: true });
      expect(types(conf)).toEqual(["bridge"]);
    });

    test("also if it has none itself", () => {
      writeList({});
      inFolder("10-a.conf", { type: "ptp" });
      expect(types(new ConfDir(dir))).toEqual(["ptp"]);
    });

    test("unless the list says that it has them all, or is a single plugin", () => {
      inFolder("10-a.conf", { type: "ptp" });
      for (const loadOnlyInlinedPlugins of [true, "true"]) {
        writeList({ ...bridge, loadOnlyInlinedPlugins });
        expect(types(new ConfDir(dir))).toEqual(["bridge"]);
      }
      writeList({ loadOnlyInlinedPlugins: true });
      const problem = expect.stringContaining("10-a.conflist: plugins is missing");
      expect(new ConfDir(dir).current()).toEqual({ lists: [], problem });
      writeList({ type: "macvlan" }, "05-a.conf");
      expect(types(new ConfDir(dir))).toEqual(["macvlan"]);
    });

    test("and keeps the last valid list while one of them is broken", () => {
      writeList(bridge);
      inFolder("10-a.conf", { type: "ptp" });
      const conf = new ConfDir(dir);
      conf.current();
      inFolder("10-a.conf", "{");
      expect(types(conf)).toEqual(["bridge", "ptp"]);
      expect(conf.current().problem).toContain("pods/10-a.conf: is not JSON");
      inFolder("10-a.conf", { mtu: 1 });
      expect(conf.current().problem).toContain("pods/10-a.conf: type is missing");
    });

    test("unless that is a file", () => {
      writeList(bridge);
      writeFileSync(join(dir, "pods"), "");
      expect(new ConfDir(dir).current()).toMatchObject({ list: bridge });
    });
  });

  test("forgets that the folder could not be read, though its files are the same", () => {
    const path = join(dir, "net.d");
    const conf = new ConfDir(path);
    mkdirSync(path);
    writeFileSync(join(path, "a.conflist"), list("a"));
    const first = conf.current();
    expect(conf.current()).toBe(first);
    renameSync(path, join(dir, "away"));
    writeFileSync(path, "");
    expect(conf.current()).toMatchObject({ list: { name: "a" }, problem: expect.any(String) });
    rmSync(path);
    renameSync(join(dir, "away"), path);
    expect(conf.current()).toEqual(first);
  });

  test("survives its folder's deletion and return", () => {
    const conf = new ConfDir(join(dir, "net.d"));
    expect(conf.current()).toEqual({ lists: [] });
    mkdirSync(join(dir, "net.d"));
    writeFileSync(join(dir, "net.d/a.conflist"), list("a"));
    expect(conf.current().list?.name).toBe("a");
    rmSync(join(dir, "net.d"), { recursive: true });
    expect(conf.current()).toEqual({ lists: [] });
    mkdirSync(join(dir, "net.d"));
    writeFileSync(join(dir, "net.d/a.conflist"), list("b"));
    expect(conf.current().list?.name).toBe("b");
  });

  test("refuses a file over 1 MiB", () => {
    writeFileSync(join(dir, "a.conflist"), " ".repeat((1 << 20) + 1));
    expect(new ConfDir(dir).current().problem).toContain("is over 1048576 bytes");
  });
});
