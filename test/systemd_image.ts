// Makes an OCI archive of Debian with systemd for test/cri/systemd.test.ts: `bun test/systemd_image.ts`, as root.
import { execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { makeImage, makeLayer, ociArchive } from "./image_maker.ts";

export const systemdImage = join(import.meta.dirname, ".cache/systemd.tar");

const unneeded = "var/cache/* var/lib/apt usr/share/zoneinfo usr/lib/udev/hwdb.*".split(" ");

function makeRootfs(path: string): Buffer {
  const docs = ["doc", "man", "locale"].map((name) => `path-exclude=/usr/share/${name}/*`);
  const argv = [
    ["-q", "--mode=root", "--variant=essential", "--format=tar", "--include=systemd-sysv,dbus"],
    docs.map((option) => `--dpkgopt=${option}`),
    unneeded.map((name) => `--customize-hook=rm -rf "$1"/${name}`),
    ["bookworm", path],
  ];
  execFileSync("mmdebstrap", argv.flat(), { stdio: "inherit" });
  return readFileSync(path);
}

if (import.meta.main) {
  const scratch = mkdtempSync(join(tmpdir(), "isulad-systemd-"));
  try {
    const layer = makeLayer(makeRootfs(join(scratch, "rootfs.tar")), "none");
    const image = makeImage([layer], { Cmd: ["/sbin/init"] });
    const name = "example.test/systemd:1";
    writeFileSync(`${systemdImage}.tmp`, ociArchive([{ image, name }]));
    renameSync(`${systemdImage}.tmp`, systemdImage);
  } finally {
    rmSync(scratch, { recursive: true });
  }
}
