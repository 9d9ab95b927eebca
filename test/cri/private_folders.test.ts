// Tests that other users of the node cannot enter graph and state: only root can reach set-uid programs or
// devices that a container creates (the class of CVE-2021-41103).
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { spawnSync } from "node:child_process";
import {
  chmodSync,
  lstatSync,
  readFileSync,
  readdirSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { join } from "node:path";
import { runtime } from "../../src/proto/messages.js";
import { type Daemon, startDaemon } from "../harness.ts";
import { busyboxImage } from "../image_maker.ts";

const { NamespaceMode } = runtime.v1;
const image = "example.test/with-id:1";

let daemon: Daemon;
beforeAll(async () => {
  daemon = await startDaemon();
  await daemon.loadImage(
    busyboxImage({}, [{ name: "id", mode: 0o755, data: readFileSync("/usr/bin/id") }]),
    image,
  );
  chmodSync(daemon.dir, 0o755); // as /var/lib and /run are
});
afterAll(() => daemon?.[Symbol.asyncDispose]());

const tops = () => ["graph", "state"].map((name) => join(daemon.dir, name));

/** Undefined for a file that has gone meanwhile, such as one that is replaced by its successor. */
const statOf = (path: string) => lstatSync(path, { throwIfNoEntry: false });

/** The folder and what lies in its first two levels, but for symlinks, which have no permissions. */
function firstLevels(top: string): string[] {
  const entries = (folder: string) =>
    statOf(folder)?.isDirectory() ? readdirSync(folder).map((name) => join(folder, name)) : [];
  const first = entries(top);
  return [top, ...first, ...first.flatMap(entries)].filter(
    (path) => statOf(path)?.isSymbolicLink() === false,
  );
}

function openToOthers(): string[] {
  const mode = (path: string) => (statOf(path)?.mode ?? 0) & 0o777;
  const open = tops()
    .flatMap(firstLevels)
    .filter((path) => (mode(path) & 0o007) !== 0);
  return open.map((path) => `${mode(path).toString(8)} ${path.slice(daemon.dir.length + 1)}`);
}

/** A pod with a pause container and an image volume; its container has made what must not get out. */
async function hostilePod() {
  const pod = daemon.podConfig({
    linux: {
      security_context: {
        namespace_options: { network: NamespaceMode.NODE, pid: NamespaceMode.POD },
      },
    },
    hostname: "",
  });
  const podId = await daemon.runPod(pod);
  const script = `cp /id /become-root && chown 0:0 /become-root && chmod 6755 /become-root && mknod /zero c 1 5 &&
    chmod 666 /zero && echo made; exec sleep 600`;
  const mounts = [{ container_path: "/i", image: { image }, readonly: true }];
  const id = await daemon.run(podId, pod, script, { image: { image }, mounts });
  await daemon.logged(id, "made");
  return { podId, id };
}

function asNobody(...argv: string[]) {
  const drop = [
    "--reuid=65534",
    "--regid=65534",
    "--clear-groups",
    "--",
    "sh",
    "-c",
    'exec "$0" "$@"',
  ];
  return spawnSync("setpriv", [...drop, ...argv], { encoding: "utf8", timeout: 20_000 });
}

/** Every path of the name that root finds under graph and state. */
function pathsOf(name: string): string[] {
  const { stdout } = spawnSync("find", [...tops(), "-name", name], { encoding: "utf8" });
  return stdout.split("\n").filter(Boolean);
}

describe("graph and state", () => {
  test("give other users no path to a set-uid program or device that a container created", async () => {
    const { podId } = await hostilePod();
    const programs = pathsOf("become-root");
    expect(programs.some((path) => path.endsWith("/rootfs/become-root"))).toBe(true);
    for (const path of programs) {
      expect([path, asNobody(path, "-u").stdout]).toEqual([path, ""]);
    }
    const devices = pathsOf("zero").filter((path) => lstatSync(path).isCharacterDevice());
    expect(devices.length).toBeGreaterThan(1);
    for (const path of devices) expect(asNobody("head", "-c1", path).status).not.toBe(0);
    for (const top of tops()) expect(asNobody("ls", top).status).not.toBe(0);
    await daemon.removePod(podId);
  });

  test("have no permissions for others in their first two levels", async () => {
    const { podId, id } = await hostilePod();
    expect((await daemon.exec(id, "echo in")).stdout).toBe("in\n");
    expect(openToOthers()).toEqual([]);
    await daemon.removePod(podId);
    expect(openToOthers()).toEqual([]);
  });

  test("are closed at the start if an earlier build left them open, and pods keep running", async () => {
    const { podId, id } = await hostilePod();
    await daemon.stop();
    const outside = join(daemon.dir, "outside");
    writeFileSync(outside, "", { mode: 0o644 });
    symlinkSync(outside, join(daemon.dir, "graph/layers/link"));
    for (const path of tops().flatMap(firstLevels)) {
      if (lstatSync(path).isDirectory()) chmodSync(path, 0o711);
    }
    await daemon.start();
    expect(openToOthers()).toEqual([]);
    expect(lstatSync(outside).mode & 0o777).toBe(0o644);
    expect((await daemon.exec(id, "test -u /become-root && echo there")).stdout).toBe("there\n");
    for (const path of pathsOf("become-root")) expect(asNobody(path, "-u").stdout).toBe("");
    await daemon.removePod(podId);
  });
});
