// Tests the decisions of a release: version, notes, bill of materials, and which runc is refused.
import { expect, test } from "bun:test";
import { spawnSync } from "node:child_process";
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { packageVersion, targets } from "../../dist/build.ts";
import { requireCompiler, requireSeccomp } from "../../dist/bundle.ts";
import { buildDeb, debVersion, rpmVersion } from "../../dist/packages.ts";
import { checksums, planOf } from "../../dist/release.ts";
import { writeDocuments } from "../../dist/shipped_docs.ts";
import { debianPart, goParts, npmPart, releaseNotes, sbom } from "../../dist/release_text.ts";

const tagged = () => `v${packageVersion()}`;

test("a release has the version of the tag, and every target", () => {
  expect(planOf([], tagged)).toMatchObject({
    version: packageVersion(),
    isTrial: false,
    targets: Object.keys(targets),
  });
});

test("a tag that is not package.json's version is refused, unless a version is given", () => {
  expect(() => planOf([], () => "v9.9.9")).toThrow("the tag is v9.9.9, but package.json has");
  const unasked = () => {
    throw new Error("the tag was read");
  };
  expect(planOf(["--version", "9.9.9"], unasked)).toMatchObject({
    version: "9.9.9",
    isTrial: true,
  });
});

test.each([
  [["--version", "1.2"], "is no version such as 1.2.3"],
  [["--version", "../etc"], "is no version such as 1.2.3"],
  [["--version", "1.2.3", "--targets", "linux-mips"], '--targets: unknown target "linux-mips"'],
  [["--version", "1.2.3", "--bundles", "linux-x64-musl"], "--bundles: unknown target"],
  [["--version", "1.2.3", "--target", "linux-x64"], "--target"],
])("%j is refused", (argv, message) => {
  expect(() => planOf(argv, tagged)).toThrow(message);
});

test("none leaves a list empty", () => {
  const plan = planOf(["--version", "1.2.3", "--targets", "none", "--packages", "none"], tagged);
  expect(plan).toMatchObject({ targets: [], packages: [] });
});

test("a bundle without its C compiler names the packages to install", () => {
  const { PATH } = process.env;
  process.env["PATH"] = "/nowhere";
  using _ = { [Symbol.dispose]: () => void (process.env["PATH"] = PATH) };
  expect(() => requireCompiler("arm64")).toThrow(
    "dpkg --add-architecture arm64 && apt-get update && apt-get install gcc-aarch64-linux-gnu",
  );
});

const changelog =
  "# Changelog\n\n## Unreleased\n- a\n\n## 1.2.0 (2026-01-01)\n- b\n- c\n\n## 1.1.0\n";

test("the notes are the version's section of the changelog", () => {
  expect(releaseNotes(changelog, "1.2.0")).toBe("- b\n- c\n");
  expect(releaseNotes(changelog, "Unreleased")).toBe("- a\n");
});

test.each(["1.1.0", "1.2", "2.0.0"])(
  "a changelog without notes of %s stops the release",
  (version) => {
    expect(() => releaseNotes(changelog, version)).toThrow(`has no section "## ${version}"`);
  },
);

test("a runc without seccomp is refused", () => {
  requireSeccomp('{"linux": {"seccomp": {"enabled": true}}}');
  for (const features of ['{"linux": {"seccomp": {"enabled": false}}}', '{"linux": {}}', "{}"]) {
    expect(() => requireSeccomp(features)).toThrow("this runc has no seccomp");
  }
});

test("the bill of materials names npm packages, Go with its modules, and C libraries by package URLs", () => {
  const go = goParts(
    "/b/runc: go1.26.8\n\tpath\tgithub.com/opencontainers/runc\n\tmod\tgithub.com/opencontainers/runc\t(devel)\t\n\tdep\tgolang.org/x/sys\tv0.30.0\th1:y=\n",
    ["github.com/opencontainers/runc@v1.5.2", "example.com/other@v1.0.0"],
  );
  const library = debianPart("libseccomp-dev", "2.5.4-1+deb12u1", "LGPL-2.1-or-later");
  const parts = [npmPart("@grpc/grpc-js", "1.14.7", "Apache-2.0"), ...go, library];
  const made = { version: "1.2.3", commit: "abc", time: new Date(0) };
  const { metadata, components, dependencies } = JSON.parse(sbom(made, parts));
  expect(metadata).toMatchObject({
    timestamp: "1970-01-01T00:00:00.000Z",
    component: { type: "application", name: "isulad-ts", version: "1.2.3" },
  });
  expect(components.map(({ purl }: { purl: string }) => purl)).toEqual([
    "pkg:npm/%40grpc/grpc-js@1.14.7",
    "pkg:golang/stdlib@1.26.8",
    "pkg:golang/github.com/opencontainers/runc@v1.5.2",
    "pkg:golang/golang.org/x/sys@v0.30.0",
    "pkg:deb/debian/libseccomp-dev@2.5.4-1%2Bdeb12u1",
  ]);
  expect(dependencies[0].dependsOn).toHaveLength(5);
});

test("a release candidate sorts before its release in both package formats", () => {
  expect([debVersion("1.2.3-rc-1"), rpmVersion("1.2.3-rc-1")]).toEqual([
    "1.2.3~rc-1",
    "1.2.3~rc.1",
  ]);
});

test.skipIf(spawnSync("dpkg-deb", ["--version"]).status !== 0)(
  "the deb has its size, its unit's page and the pages that this links to",
  async () => {
    const folder = mkdtempSync(join(tmpdir(), "isulad-release-"));
    using _ = { [Symbol.dispose]: () => rmSync(folder, { recursive: true }) };
    const [documents, executable] = ["documents", "isulad-ts"].map((name) => join(folder, name));
    await writeDocuments(documents!);
    writeFileSync(executable!, "#!/bin/sh\n");
    const source = { version: "1.2.3", epoch: "0", executable: executable!, documents: documents! };
    const deb = join(folder, buildDeb({ ...source, out: folder }, "amd64"));
    const dpkg = (...words: string[]) => String(spawnSync("dpkg-deb", words).stdout);
    expect(Number(dpkg("--field", deb, "Installed-Size"))).toBeGreaterThan(100);
    const files = dpkg("--contents", deb);
    for (const name of ["copyright", "README.md", "docs/installation.md", "docs/airgap.md"]) {
      expect(files).toContain(`./usr/share/doc/isulad-ts/${name}\n`);
    }
    expect(files).not.toContain(".ts\n");
    dpkg("--extract", deb, join(folder, "root"));
    const unit = join(folder, "root/usr/lib/systemd/system/isulad-ts.service");
    const [, page] = /^Documentation=file:\/\/(.*)$/m.exec(readFileSync(unit, "utf8"))!;
    expect(existsSync(join(folder, "root", page!))).toBe(true);
  },
);

test("checksums are lines of sha256sum, in the order of the names", () => {
  const folder = mkdtempSync(join(tmpdir(), "isulad-release-"));
  using _ = { [Symbol.dispose]: () => rmSync(folder, { recursive: true }) };
  writeFileSync(join(folder, "b"), "");
  writeFileSync(join(folder, "a"), "a");
  const sums = [
    "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb  a",
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855  b",
  ];
  expect(checksums(folder)).toBe(`${sums.join("\n")}\n`);
});
