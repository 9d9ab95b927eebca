// Builds the deb and rpm packages with dpkg-deb and rpmbuild. Their scripts call the executable's own install and
// uninstall; the package owns the program and the unit.
import {
  cpSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { basename, join } from "node:path";
import { output } from "./bundle.ts";

export type PackageSource = {
  version: string;
  /** Seconds since 1970, of every file. */
  epoch: string;
  executable: string;
  /** Folder of writeDocuments (shipped_docs.ts). */
  documents: string;
  /** The folder of the packages. */
  out: string;
};

const description = "Container runtime daemon for Kubernetes nodes (CRI v1)";
const maintainer = "isulad-ts maintainers";

const scripts = {
  install: "/usr/bin/isulad-ts install --packaged",
  uninstall: "/usr/bin/isulad-ts uninstall --packaged",
  reload: "if [ -d /run/systemd/system ]; then systemctl daemon-reload || true; fi",
};

/**
 * Removes what `uninstall --keep-config` has left, without the executable: Debian keeps a package's configuration
 * until the package is purged. Files that were changed stay, except daemon.json, which is nobody else's.
 */
export const debPurge = `
record=\${DPKG_ROOT:-}/usr/local/share/isulad-ts/installed
if [ "$1" = purge ] && [ -e "$record" ]; then
  sed -n 's/^[0-9a-f]\\{64\\}  //p' "$record" | sort -u | while IFS= read -r path; do
    file="\${DPKG_ROOT:-}$path"
    [ -f "$file" ] || continue
    sum=$(sha256sum < "$file" | cut -c 1-64)
    if [ "$path" = /etc/isulad/daemon.json ] || grep -qxF "$sum  $path" "$record"; then rm -f "$file"; fi
  done
  folders=$(sed -n 's/^folder  //p' "$record" | tac)
  rm -f "$record"
  for folder in $folders; do rmdir --ignore-fail-on-non-empty "\${DPKG_ROOT:-}$folder" 2>/dev/null || true; done
fi
`;

/** Makes the folder tree that both packages install. zsh: where the distribution's zsh looks for completions. */
function payload(source: PackageSource, folder: string, zsh: string): void {
  const put = (path: string, from: string, mode: number) => {
    mkdirSync(join(folder, path, ".."), { recursive: true, mode: 0o755 });
    cpSync(from, join(folder, path));
    output(["chmod", mode.toString(8), join(folder, path)]);
  };
  put("usr/bin/isulad-ts", source.executable, 0o755);
  const { documents } = source;
  for (const file of filesIn(documents)) {
    const path = sharedPath(file, zsh);
    put(path, join(documents, file), 0o644);
    if (path.startsWith("usr/share/man/")) output(["gzip", "-9n", join(folder, path)]);
  }
  const unit = readFileSync(join(import.meta.dirname, "isulad-ts.service"), "utf8");
  mkdirSync(join(folder, "usr/lib/systemd/system"), { recursive: true, mode: 0o755 });
  const path = join(folder, "usr/lib/systemd/system/isulad-ts.service");
  const guide = "share/doc/isulad-ts";
  writeFileSync(path, unit.replaceAll("/usr/local/", "/usr/").replace(guide, `${guide}/docs`));
  output(["find", join(folder, "usr"), "-type", "d", "-exec", "chmod", "755", "{}", "+"]);
}

function filesIn(folder: string): string[] {
  return readdirSync(folder, { recursive: true, encoding: "utf8" }).filter((name) =>
    statSync(join(folder, name)).isFile(),
  );
}

/** Returns the place of a shipped document. */
export function sharedPath(file: string, zsh: string): string {
  const [top, kind] = file.split("/");
  if (top === "man") return `usr/share/${file}`;
  if (top !== "completions") {
    return `usr/share/doc/isulad-ts/${file === "LICENSE" ? "copyright" : file}`;
  }
  const folders: Record<string, string> = {
    bash: "bash-completion/completions",
    zsh,
    fish: "fish/vendor_completions.d",
  };
  return `usr/share/${folders[kind!]!}/${basename(file)}`;
}

/** debArch: amd64 or arm64. Returns the file's name. */
export function buildDeb(source: PackageSource, debArch: string): string {
  return inScratch((scratch) => {
    payload(source, scratch, "zsh/vendor-completions");
    const control = [
      "Package: isulad-ts",
      `Version: ${debVersion(source.version)}`,
      `Architecture: ${debArch}`,
      "Section: admin",
      "Priority: optional",
      `Maintainer: ${maintainer}`,
      `Installed-Size: ${sizeKib(scratch)}`,
      "Depends: libc6, runc | crun, containernetworking-plugins, iptables, iproute2, util-linux, kmod",
      `Description: ${description}`,
      " One daemon and one monitor run the pods of a kubelet with runc or crun and CNI plugins.",
      "",
    ].join("\n");
    const files = {
      control: [control, 0o644],
      postinst: [
        `#!/bin/sh\nset -e\nif [ "$1" = configure ]; then ${scripts.install}; fi\n`,
        0o755,
      ],
      prerm: [
        `#!/bin/sh\nset -e\nif [ "$1" = remove ]; then ${scripts.uninstall} --keep-config; fi\n`,
        0o755,
      ],
      postrm: [`#!/bin/sh\nset -e\n${scripts.reload}\n${debPurge}`, 0o755],
    } as const;
    mkdirSync(join(scratch, "DEBIAN"), { mode: 0o755 });
    for (const [name, [text, mode]] of Object.entries(files)) {
      writeFileSync(join(scratch, "DEBIAN", name), text, { mode });
    }
    const name = `isulad-ts_${debVersion(source.version)}_${debArch}.deb`;
    const argv = ["dpkg-deb", "--root-owner-group", "-Zxz", "-z1", "--build", scratch];
    output([...argv, join(source.out, name)], { SOURCE_DATE_EPOCH: source.epoch });
    return name;
  });
}

function sizeKib(folder: string): number {
  return Number.parseInt(output(["du", "-sk", "--apparent-size", folder]), 10);
}

/** rpmArch: x86_64 or aarch64. Returns the file's name. */
export function buildRpm(source: PackageSource, rpmArch: string): string {
  return inScratch((scratch) => {
    payload(source, join(scratch, "payload"), "zsh/site-functions");
    const version = rpmVersion(source.version);
    writeFileSync(join(scratch, "isulad-ts.spec"), spec(version, join(scratch, "payload")));
    const defines = {
      _topdir: scratch,
      _rpmdir: source.out,
      _rpmfilename: "%{NAME}-%{VERSION}-%{RELEASE}.%{ARCH}.rpm",
    };
    const flags = Object.entries(defines).flatMap(([name, value]) => ["-D", `${name} ${value}`]);
    const argv = ["rpmbuild", "-bb", "--quiet", "--target", `${rpmArch}-linux`, ...flags];
    output([...argv, join(scratch, "isulad-ts.spec")], { SOURCE_DATE_EPOCH: source.epoch });
    return `isulad-ts-${version}-1.${rpmArch}.rpm`;
  });
}

/** The executable is not stripped (Bun's bytecode is appended to it), and requires only the libc. */
function spec(version: string, folder: string): string {
  return `
%global debug_package %{nil}
%global __os_install_post %{nil}
%global _build_id_links none
%global source_date_epoch_from_changelog 0
%global clamp_mtime_to_source_date_epoch 1
%define _binary_payload w3.zstdio
Name: isulad-ts
Version: ${version}
Release: 1
Summary: ${description}
License: Apache-2.0
AutoReqProv: no
Requires: (runc or crun), containernetworking-plugins, iptables, iproute, util-linux, kmod
%description
One daemon and one monitor run the pods of a kubelet with runc or crun and CNI plugins.
%install
cp -a ${folder}/. %{buildroot}/
%post
${scripts.install}
%preun
if [ "$1" = 0 ]; then ${scripts.uninstall}; fi
%postun
${scripts.reload}
%files
%defattr(-, root, root)
/usr/bin/isulad-ts
/usr/lib/systemd/system/isulad-ts.service
%doc /usr/share/doc/isulad-ts
/usr/share/man/man1/isulad-ts*
/usr/share/man/man5/isulad-ts*
/usr/share/bash-completion/completions/isulad-ts
/usr/share/zsh/site-functions/_isulad_ts
/usr/share/fish/vendor_completions.d/isulad-ts.fish
`;
}

/** Both tools sort "~" before the end: 1.0.0-rc.1 is older than 1.0.0. */
export function debVersion(version: string): string {
  return version.replace("-", "~");
}

/** An rpm version has no further "-". */
export function rpmVersion(version: string): string {
  return version.replace("-", "~").replaceAll("-", ".");
}

function inScratch(make: (folder: string) => string): string {
  const scratch = mkdtempSync(join(tmpdir(), "isulad-package-"));
  output(["chmod", "755", scratch]);
  try {
    return make(scratch);
  } finally {
    rmSync(scratch, { recursive: true, force: true });
  }
}
