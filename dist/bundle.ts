// Builds runc and the CNI plugins from their Go modules, for nodes without network, and collects the licences.
import { spawnSync } from "node:child_process";
import { cpSync, existsSync, mkdirSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { arch } from "node:os";
import { join } from "node:path";
import process from "node:process";

const runcModule = "github.com/opencontainers/runc@v1.5.2";
const cniModule = "github.com/containernetworking/plugins@v1.9.1";
export const builtModules = [runcModule, cniModule];
const cniPlugins = [
  ...["bridge", "host-device", "ipvlan", "loopback", "macvlan", "ptp"].map(
    (name) => `main/${name}`,
  ),
  ...["dhcp", "host-local", "static"].map((name) => `ipam/${name}`),
  ...["bandwidth", "firewall", "portmap", "sbr", "tuning"].map((name) => `meta/${name}`),
];

/**
 * install: on Debian; libraries: Debian's folder; linked: the packages of the static libraries; emulator: runs its
 * programs elsewhere.
 */
type Platform = {
  goarch: string;
  cc: string;
  libraries: string;
  linked: string[];
  install: string;
  emulator: string;
};

/** By Node's name of a processor. */
const platforms: Record<string, Platform> = {
  x64: {
    goarch: "amd64",
    cc: "x86_64-linux-gnu-gcc",
    libraries: "x86_64-linux-gnu",
    linked: ["libseccomp-dev:amd64", "libc6-dev:amd64"],
    install: "apt-get install gcc libseccomp-dev",
    emulator: "qemu-x86_64-static",
  },
  arm64: {
    goarch: "arm64",
    cc: "aarch64-linux-gnu-gcc",
    libraries: "aarch64-linux-gnu",
    linked: ["libseccomp-dev:arm64", "libc6-dev-arm64-cross"],
    install:
      "dpkg --add-architecture arm64 && apt-get update && apt-get install gcc-aarch64-linux-gnu libc6-dev-arm64-cross libseccomp-dev:arm64",
    emulator: "qemu-aarch64-static",
  },
};

/** cpu: x64 or arm64. @throws with the packages to install. */
export function requireCompiler(cpu: string): void {
  const { cc, libraries, install } = platforms[cpu]!;
  const hasLibrary = existsSync(`/usr/lib/${libraries}/libseccomp.a`);
  if (hasLibrary && tryRun([cc, "--version"]) !== undefined) return;
  throw new Error(
    `the bundle for ${cpu} needs ${cc} and libseccomp.a: ${install}, or choose others by --bundles`,
  );
}

/** Makes folder/runc, folder/cni and folder/licenses. @throws if runc has no seccomp. */
export function buildBundle(cpu: string, folder: string): void {
  const { goarch, cc, libraries } = platforms[cpu]!;
  rmSync(folder, { recursive: true, force: true });
  mkdirSync(join(folder, "cni"), { recursive: true });
  const own = { GOOS: "linux", GOARCH: goarch, GOFLAGS: "-mod=readonly -trimpath -buildvcs=false" };
  const runc = moduleFolder(runcModule);
  goBuild(runc, join(folder, "runc"), {
    tags: "seccomp,netgo,osusergo",
    packages: ".",
    ldflags: "-s -w -extldflags=-static",
    // pkg-config would find this machine's libseccomp.
    env: { ...own, CGO_ENABLED: "1", CC: cc, PKG_CONFIG_LIBDIR: `/usr/lib/${libraries}/pkgconfig` },
  });
  checkSeccomp(cpu, join(folder, "runc"));
  const cni = moduleFolder(cniModule);
  for (const plugin of cniPlugins) {
    goBuild(cni, join(folder, "cni", plugin.split("/")[1]!), {
      tags: "",
      packages: `./plugins/${plugin}`,
      ldflags: "-s -w",
      env: { ...own, CGO_ENABLED: "0" },
    });
  }
  collectLicenses(folder, [
    { module: runc, packages: ["."], tags: "seccomp,netgo,osusergo" },
    { module: cni, packages: cniPlugins.map((plugin) => `./plugins/${plugin}`), tags: "" },
  ]);
}

/** @throws unless `runc features` says that seccomp is enabled. */
export function requireSeccomp(features: string): void {
  const { linux } = JSON.parse(features) as { linux?: { seccomp?: { enabled?: boolean } } };
  if (linux?.seccomp?.enabled === true) return;
  throw new Error("this runc has no seccomp (`runc features`): pods would run without a filter");
}

/** Another processor's runc may not run here; the linker has then required libseccomp by the build tag. */
function checkSeccomp(cpu: string, runc: string): void {
  if (cpu === arch()) return requireSeccomp(output([runc, "features"]));
  const emulated = tryRun([platforms[cpu]!.emulator, runc, "features"]);
  if (emulated?.status === 0) return requireSeccomp(emulated.stdout);
  const settings = output(["go", "version", "-m", runc]);
  if (/-tags=\S*\bseccomp\b/.test(settings) && /CGO_ENABLED=1/.test(settings)) return;
  throw new Error(`${runc} was built without the tag seccomp`);
}

type GoBuild = { tags: string; packages: string; ldflags: string; env: Record<string, string> };

function goBuild(folder: string, out: string, { tags, packages, ldflags, env }: GoBuild): void {
  const argv = ["go", "build", "-C", folder, "-p", "2", "-tags", tags, "-ldflags", ldflags];
  output([...argv, "-o", out, packages], env);
}

function moduleFolder(module: string): string {
  const { Dir } = JSON.parse(output(["go", "mod", "download", "-json", module])) as { Dir: string };
  return Dir;
}

/** The Debian packages of the C libraries that runc links statically. */
export function linkedLibraries(cpu: string): { name: string; version: string }[] {
  return platforms[cpu]!.linked.map((name) => {
    const version = output(["dpkg-query", "--show", "--showformat=${Version}", name]);
    return { name: name.replace(/:.*$/, ""), version };
  });
}

type Linked = { module: string; packages: string[]; tags: string };

/** Copies the licences of all modules that are linked in, and of the C libraries. */
function collectLicenses(folder: string, linked: Linked[]): void {
  const template = "{{with .Module}}{{.Path}}@{{.Version}} {{.Dir}}{{end}}";
  for (const { module, packages, tags } of linked) {
    const argv = ["go", "list", "-C", module, "-mod=readonly", "-deps", "-tags", tags];
    const lines = new Set(
      output([...argv, "-f", template, ...packages])
        .trim()
        .split("\n"),
    );
    for (const line of [...lines].filter((text) => text !== "")) {
      const [name = "", source = module] = line.replace(/@ /, ` `).split(" ");
      copyLicenses(source, join(folder, "licenses", name));
    }
  }
  for (const library of ["libseccomp-dev", "libc6-dev"]) {
    const text = `/usr/share/doc/${library}/copyright`;
    if (!existsSync(text))
      throw new Error(`${text} is missing: runc links this library statically`);
    cpSync(text, join(folder, "licenses", library, "copyright"));
  }
  const note = `runc (${runcModule}) and CNI plugins (${cniModule}), built unchanged from their Go modules.
runc links libseccomp and the libc of the build machine statically (LGPL-2.1): \`go build\` of that module
with the tags seccomp, netgo and osusergo links it with others.\n`;
  writeFileSync(join(folder, "licenses", "README"), note);
}

function copyLicenses(from: string, to: string): void {
  const names = readdirSync(from).filter((name) => /^(licen[cs]e|copying|notice)/i.test(name));
  if (names.length === 0) throw new Error(`${from} has no licence text`);
  mkdirSync(to, { recursive: true });
  for (const name of names) cpSync(join(from, name), join(to, name), { recursive: true });
}

/** Runs a program of the release. @throws with its output if it fails or is missing. */
export function output(argv: string[], env: Record<string, string> = {}): string {
  const done = tryRun(argv, env);
  if (done === undefined) throw new Error(`${argv[0]} is missing: install it for the release`);
  if (done.status === 0) return done.stdout;
  throw new Error(`${argv.join(" ")} failed:\n${done.stdout}${done.stderr}`);
}

function tryRun([program = "", ...args]: string[], env: Record<string, string> = {}) {
  const all = { ...process.env, ...env };
  const done = spawnSync(program, args, { env: all, encoding: "utf8", maxBuffer: 64 << 20 });
  return done.error === undefined ? done : undefined;
}
