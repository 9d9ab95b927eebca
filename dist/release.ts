// Makes a release in dist/release: `bun run release` at a tag vX.Y.Z. A tarball and an executable a target,
// tarballs with runc and CNI plugins, deb and rpm packages, a bill of materials, notes and checksums.
import { createHash } from "node:crypto";
import {
  chmodSync,
  copyFileSync,
  cpSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  writeFileSync,
} from "node:fs";
import { join } from "node:path";
import process from "node:process";
import { parseArgs } from "node:util";
import * as bundled from "../src/proto/licenses.ts";
import { build, commit, fileOf, packageVersion, targets } from "./build.ts";
import { buildBundle, builtModules, linkedLibraries, output, requireCompiler } from "./bundle.ts";
import { buildDeb, buildRpm } from "./packages.ts";
import { writeDocuments } from "./shipped_docs.ts";
import { debianPart, goParts, npmPart, type Part, releaseNotes, sbom } from "./release_text.ts";

const usage = `usage: bun run release [--version X.Y.Z] [--targets A,B] [--bundles A,B] [--packages A,B] [--out DIR]
  --version  instead of the tag vX.Y.Z of HEAD; for tests
  --targets  of ${Object.keys(targets).join(", ")} (default: all)
  --bundles  targets with a tarball that has runc and CNI plugins (default: linux-x64-baseline,linux-arm64)
  --packages targets with a deb and an rpm (default: linux-x64-baseline,linux-arm64)
  each list may be "none"`;

const root = join(import.meta.dirname, "..");
const architectures: Record<string, { cpu: string; deb: string; rpm: string }> = {
  "linux-x64-baseline": { cpu: "x64", deb: "amd64", rpm: "x86_64" },
  "linux-arm64": { cpu: "arm64", deb: "arm64", rpm: "aarch64" },
};

type Plan = {
  version: string;
  /** Not at a tag: the notes may be those of the unreleased changes. */
  isTrial: boolean;
  targets: string[];
  bundles: string[];
  packages: string[];
  out: string;
};

/** @throws for bad arguments, or when HEAD is no clean tag of package.json's version. */
export function planOf(argv: string[], tag: () => string): Plan {
  const text = { type: "string" } as const;
  const options = { version: text, targets: text, bundles: text, packages: text, out: text };
  const { values } = parseArgs({ args: argv, options });
  const list = (name: "targets" | "bundles" | "packages", known: string[]) => {
    const value = values[name];
    if (value === "none") return [];
    const chosen = value?.split(",") ?? known;
    for (const one of chosen) {
      if (!known.includes(one)) throw new Error(`--${name}: unknown target "${one}"\n${usage}`);
    }
    return chosen;
  };
  const version = values.version ?? tag().replace(/^v/, "");
  if (!/^\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?$/.test(version)) {
    throw new Error(`"${version}" is no version such as 1.2.3 or 1.2.3-rc.1\n${usage}`);
  }
  const isTrial = values.version !== undefined;
  if (!isTrial && version !== packageVersion()) {
    throw new Error(`the tag is v${version}, but package.json has version ${packageVersion()}`);
  }
  const packaged = Object.keys(architectures);
  return {
    version,
    isTrial,
    targets: list("targets", Object.keys(targets)),
    bundles: list("bundles", packaged),
    packages: list("packages", packaged),
    out: values.out ?? join(root, "dist/release"),
  };
}

/** @throws unless HEAD has a tag and no changes. */
function tagOfHead(): string {
  if (commit().includes("+"))
    throw new Error("there are uncommitted changes: commit or stash them");
  const git = ["git", "-C", root];
  const tags = output([...git, "tag", "--points-at", "HEAD", "v*"])
    .trim()
    .split("\n");
  if (tags.length === 1 && tags[0] !== "") return tags[0]!;
  throw new Error(
    `HEAD has ${tags[0] === "" ? "no" : "several"} tag vX.Y.Z: tag it, or see --version`,
  );
}

async function release(plan: Plan): Promise<void> {
  const { version, out } = plan;
  mkdirSync(out, { recursive: true });
  if (readdirSync(out).length > 0) throw new Error(`${out} is not empty: remove it, or see --out`);
  for (const target of plan.bundles) requireCompiler(architectures[target]!.cpu);
  const changelog = readFileSync(join(root, "CHANGELOG.md"), "utf8");
  const notes = releaseNotes(changelog, plan.isTrial ? "Unreleased" : version);
  try {
    await makeFiles(plan, notes);
  } catch (error) {
    rmSync(out, { recursive: true }); // it was empty: the next try need not ask for that
    throw error;
  }
}

async function makeFiles({ version, out, ...plan }: Plan, notes: string): Promise<void> {
  const documents = join(out, "documents");
  mkdirSync(documents, { recursive: true });
  const epoch = output(["git", "-C", root, "log", "-1", "--format=%ct"]).trim();
  await writeDocuments(documents);
  const parts = new Map(npmParts().map((part) => [part.purl, part]));
  for (const target of new Set([...plan.targets, ...plan.bundles, ...plan.packages])) {
    const executable = buildExecutable(target, version, out);
    const archive = { name: `isulad-ts-${version}-${target}`, executable, documents, out, epoch };
    if (plan.targets.includes(target)) pack(archive);
    if (plan.bundles.includes(target)) {
      const bundle = join(out, "bundle");
      const { cpu } = architectures[target]!;
      buildBundle(cpu, bundle);
      for (const part of bundleParts(cpu, bundle)) parts.set(part.purl, part);
      pack({ ...archive, name: `${archive.name}-bundle`, bundle });
      rmSync(bundle, { recursive: true });
    }
    if (plan.packages.includes(target)) {
      const source = { version, epoch, executable, documents, out };
      done(out, buildDeb(source, architectures[target]!.deb));
      done(out, buildRpm(source, architectures[target]!.rpm));
    }
    if (!plan.targets.includes(target)) rmSync(executable);
  }
  rmSync(documents, { recursive: true });
  const made = { version, commit: commit(), time: new Date(Number(epoch) * 1000) };
  writeFileSync(join(out, `isulad-ts-${version}.cdx.json`), sbom(made, [...parts.values()]));
  writeFileSync(join(out, "release-notes.md"), notes);
  writeFileSync(join(out, "SHA256SUMS"), checksums(out));
}

function npmParts(): Part[] {
  const { bunVersion, packages } = bundled;
  const ofNpm = packages.map(({ name, version, license }) => npmPart(name, version, license));
  return [npmPart("bun", bunVersion, "MIT"), ...ofNpm];
}

function bundleParts(cpu: string, bundle: string): Part[] {
  const plugins = readdirSync(join(bundle, "cni")).map((name) => join(bundle, "cni", name));
  const modules = [join(bundle, "runc"), ...plugins].flatMap((program) =>
    goParts(output(["go", "version", "-m", program]), builtModules),
  );
  const libraries = linkedLibraries(cpu).map(({ name, version }) =>
    debianPart(name, version, "LGPL-2.1-or-later"),
  );
  return [...modules, ...libraries];
}

function buildExecutable(target: string, version: string, out: string): string {
  const file = fileOf(target);
  build(target, file, version);
  const executable = join(out, `isulad-ts-${version}-${target}`);
  renameSync(join(root, "dist", file), executable);
  chmodSync(executable, 0o755);
  return executable;
}

type Archive = {
  name: string;
  executable: string;
  documents: string;
  out: string;
  epoch: string;
  bundle?: string;
};

/** Makes NAME.tar.gz with a folder NAME; the same bytes for the same inputs. */
function pack({ name, executable, documents, out, epoch, bundle }: Archive): void {
  const folder = join(out, "folder", name);
  cpSync(documents, folder, { recursive: true });
  copyFileSync(executable, join(folder, "isulad-ts"));
  if (bundle !== undefined) cpSync(bundle, join(folder, "bundle"), { recursive: true });
  const owner = ["--owner=0", "--group=0", "--numeric-owner"];
  const fixed = ["--sort=name", `--mtime=@${epoch}`, "--mode=go=rX,u+rw", ...owner];
  const file = join(out, `${name}.tar.gz`);
  output(["tar", "-C", join(out, "folder"), ...fixed, "-I", "gzip -n", "-cf", file, name]);
  rmSync(join(out, "folder"), { recursive: true });
  done(out, `${name}.tar.gz`);
}

function done(out: string, name: string): void {
  process.stdout.write(`${join(out, name)}\n`);
}

/** Returns the lines of `sha256sum *`. */
export function checksums(folder: string): string {
  const lines = readdirSync(folder)
    .sort()
    .map((name) => {
      const sum = createHash("sha256").update(readFileSync(join(folder, name)));
      return `${sum.digest("hex")}  ${name}\n`;
    });
  return lines.join("");
}

if (import.meta.main) {
  try {
    await release(planOf(process.argv.slice(2), tagOfHead));
  } catch (error) {
    process.stderr.write(`release: ${error instanceof Error ? error.message : String(error)}\n`);
    process.exitCode = 1;
  }
}
