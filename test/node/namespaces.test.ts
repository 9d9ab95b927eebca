// Tests the namespaces that pinNamespaces() makes, with hostname and sysctls, and their removal.
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { spawnSync } from "node:child_process";
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { hostname, tmpdir } from "node:os";
import { join } from "node:path";
import {
  applySysctls,
  isNamespaceFile,
  isPinned,
  pinNamespaces,
  unpinNamespace,
} from "../../src/node/namespaces.ts";

const signal = new AbortController().signal;
const kinds = ["net", "ipc", "uts"] as const;

describe("namespaces", () => {
  let dir = "";
  let count = 0;
  beforeAll(() => {
    dir = mkdtempSync(join(tmpdir(), "namespaces-"));
  });
  afterAll(() => rmSync(dir, { recursive: true }));

  const base = { hostname: "", sysctls: {}, signal };
  const files = () => {
    const id = join(dir, `pod${count++}`);
    return { net: `${id}-net`, ipc: `${id}-ipc`, uts: `${id}-uts` };
  };
  const unpinAll = async (paths: string[]) => {
    for (const path of paths) await unpinNamespace(path, { unlink: true });
  };
  function inside(paths: { net: string; ipc: string; uts: string }, command: string): string {
    const argv = kinds.map((kind) => `--${kind}=${paths[kind]}`);
    const result = spawnSync("nsenter", [...argv, "--", "sh", "-c", command]);
    return result.stdout.toString().trim() + result.stderr.toString();
  }

  test("pinNamespaces pins three new namespaces, with hostname, sysctls and loopback", async () => {
    const paths = files();
    const sysctls = {
      "net.ipv4.ip_unprivileged_port_start": "81",
      "net/core/somaxconn": "77",
      "kernel.shm_rmid_forced": "1",
      "kernel.msgmax": "9000",
    };
    const pinned = await pinNamespaces({ ...base, ...paths, hostname: "web-0", sysctls });
    try {
      for (const kind of kinds) {
        const own = spawnSync("readlink", [`/proc/self/ns/${kind}`]).stdout.toString();
        expect(own).not.toContain(String(pinned[kind]!.inode));
        expect(isPinned(paths[kind], pinned[kind]!.inode)).toBe(true);
        expect(isPinned(paths[kind], pinned[kind]!.inode + 1n)).toBe(false);
      }
      expect(inside(paths, "hostname; ip -br addr show lo")).toMatch(
        /^web-0\nlo +UNKNOWN +127\.0\.0\.1\/8/,
      );
      const values = "net/ipv4/ip_unprivileged_port_start net/core/somaxconn kernel/msgmax";
      expect(inside(paths, `cd /proc/sys; cat ${values}`)).toBe("81\n77\n9000");
      expect(hostname()).not.toBe("web-0");
    } finally {
      await unpinAll(Object.values(paths));
    }
    expect(readdirSync(dir)).toEqual([]);
  });

  test("pinNamespaces pins only the requested namespaces, and keeps the node's hostname without one", async () => {
    const { net, uts } = files();
    const pinned = await pinNamespaces({ ...base, net, uts });
    expect(Object.keys(pinned).sort()).toEqual(["laterSysctls", "net", "uts"]);
    expect(
      spawnSync("nsenter", [`--uts=${uts}`, "hostname"])
        .stdout.toString()
        .trim(),
    ).toBe(hostname());
    await unpinAll([net, uts]);
    expect(await pinNamespaces(base)).toEqual({ laterSysctls: {} });
  });

  test("pinNamespaces does not interpret hostname and sysctl values as shell text", async () => {
    const paths = files();
    const odd = "$(touch /tmp/x);`id`%s";
    await pinNamespaces({ ...base, ...paths, hostname: odd });
    expect(inside(paths, "cat /proc/sys/kernel/hostname")).toBe(odd);
    await unpinAll(Object.values(paths));
  });

  test("sysctls of interfaces wait for applySysctls", async () => {
    const paths = files();
    const sysctls = { "net.ipv4.conf.lo.arp_filter": "1", "net/ipv4/neigh/lo/mcast_solicit": "5" };
    const pinned = await pinNamespaces({ ...base, ...paths, sysctls });
    expect(pinned.laterSysctls).toEqual(sysctls);
    await applySysctls(paths.net, pinned.laterSysctls, signal);
    const values = "conf/lo/arp_filter neigh/lo/mcast_solicit";
    expect(inside(paths, `cd /proc/sys/net/ipv4; cat ${values}`)).toBe("1\n5");
    await unpinAll(Object.values(paths));
  });

  test.each([
    ["of the node", { "vm.swappiness": "10" }, "belongs to no namespace"],
    ["that leaves its folder", { "net/../vm/swappiness": "10" }, "belongs to no namespace"],
    ["that leaves it by dots", { "net.//.vm.swappiness": "10" }, "belongs to no namespace"],
    ["of a shared namespace", { "kernel.msgmax": "9000" }, "shares the node's ipc namespace"],
    ["that does not exist", { "net.ipv4.no_such": "1" }, "cannot write 1 to /proc/sys/net/ipv4"],
    ["that the kernel refuses", { "net.core.somaxconn": "many" }, "cannot write many to"],
  ])("pinNamespaces refuses a sysctl %s and removes its files", async (_, sysctls, message) => {
    const { net, uts } = files();
    const failed = pinNamespaces({ ...base, net, uts, hostname: "x", sysctls });
    expect(failed).rejects.toMatchObject({
      code: "INVALID_ARGUMENT",
      message: expect.stringContaining(message),
    });
    await failed.catch(() => {});
    expect(readdirSync(dir)).toEqual([]);
  });

  test("pinNamespaces refuses a hostname that the kernel would truncate", async () => {
    const { uts } = files();
    const failed = pinNamespaces({ ...base, uts, hostname: "h".repeat(65) });
    expect(await failed.catch((error: unknown) => error)).toMatchObject({
      code: "INVALID_ARGUMENT",
    });
    expect(existsSync(uts)).toBe(false);
  });

  test("pinNamespaces keeps an existing file unchanged", async () => {
    const { net, ipc } = files();
    writeFileSync(ipc, "precious");
    const failed = pinNamespaces({ ...base, net, ipc });
    expect(await failed.catch((error: unknown) => error)).toMatchObject({ code: "ALREADY_EXISTS" });
    expect(existsSync(net)).toBe(false);
    expect(readFileSync(ipc, "utf8")).toBe("precious");
    rmSync(ipc);
  });

  test("pinNamespaces removes its files when it is cancelled", async () => {
    const { net } = files();
    const failed = pinNamespaces({ ...base, net, signal: AbortSignal.abort() });
    expect(await failed.catch((error: unknown) => error)).toMatchObject({ code: "CANCELLED" });
    expect(existsSync(net)).toBe(false);
  });

  test("unpinNamespace unmounts, removes the file on request, and is idempotent", async () => {
    const { net } = files();
    const pinned = await pinNamespaces({ ...base, net });
    await unpinNamespace(net, { unlink: false });
    expect(existsSync(net)).toBe(true);
    expect(isNamespaceFile(net)).toBe(false);
    expect(isPinned(net, pinned.net!.inode)).toBe(false);
    await unpinNamespace(net, { unlink: true });
    await unpinNamespace(net, { unlink: true });
    expect(existsSync(net)).toBe(false);
    expect(isNamespaceFile(net)).toBe(false);
    expect(isNamespaceFile("")).toBe(false);
  });
});
