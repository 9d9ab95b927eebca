// Makes the texts of a release: its notes from CHANGELOG.md, and its software bill of materials (CycloneDX).

/**
 * Returns a version's section of the changelog, without its heading.
 * @throws if there is none, or it is empty.
 */
export function releaseNotes(changelog: string, heading: string): string {
  const sections = changelog.split(/^## /m).slice(1);
  const section = sections.find((text) => text.split("\n", 1)[0]!.split(" ")[0] === heading);
  const notes = section?.slice(section.indexOf("\n") + 1).trim() ?? "";
  if (notes !== "") return `${notes}\n`;
  throw new Error(`CHANGELOG.md has no section "## ${heading}": write it before the release`);
}

/** A package in a release; purl: its package URL. license: an SPDX id or expression, where it is known. */
export type Part = { name: string; version: string; purl: string; license?: string };

type Release = { version: string; commit: string; time: Date };

/** Returns a CycloneDX 1.6 document in JSON. */
export function sbom({ version, commit, time }: Release, parts: readonly Part[]): string {
  const product = partOf({
    name: "isulad-ts",
    version,
    purl: `pkg:generic/isulad-ts@${version}`,
    license: "Apache-2.0",
  });
  const document = {
    $schema: "http://cyclonedx.org/schema/bom-1.6.schema.json",
    bomFormat: "CycloneDX",
    specVersion: "1.6",
    version: 1,
    metadata: {
      timestamp: time.toISOString(),
      component: {
        ...product,
        type: "application",
        properties: [{ name: "isulad-ts:commit", value: commit }],
      },
    },
    components: parts.map(partOf),
    dependencies: [{ ref: product["bom-ref"], dependsOn: parts.map(({ purl }) => purl) }],
  };
  return `${JSON.stringify(document, null, 2)}\n`;
}

function partOf({ name, version, purl, license }: Part) {
  const licenses = license === undefined ? {} : { licenses: [{ expression: license }] };
  return { type: "library", "bom-ref": purl, name, version, purl, ...licenses };
}

/** npm's scope is part of a package URL's namespace, in which "@" is encoded. */
export function npmPart(name: string, version: string, license: string): Part {
  return { name, version, purl: `pkg:npm/${name.replace("@", "%40")}@${version}`, license };
}

/**
 * Reads Go's version and the modules in the output of `go version -m PROGRAM`.
 * built: MODULE@VERSION of programs that were built in their module's folder, whose own version Go does not know.
 */
export function goParts(text: string, built: readonly string[]): Part[] {
  const go = /: go(\d\S*)$/m.exec(text)?.[1];
  const modules = [...text.matchAll(/^\t(?:mod|dep)\t(\S+)\t(\S+)/gm)].map((match) => {
    const [, name = "", version = ""] = match;
    const own = built.find((module) => module.startsWith(`${name}@`));
    return [name, own?.slice(name.length + 1) ?? version];
  });
  return [...(go === undefined ? [] : [["stdlib", go]]), ...modules].map(
    ([name = "", version = ""]) => ({ name, version, purl: `pkg:golang/${name}@${version}` }),
  );
}

/** A C library of a Debian package, which a program links statically. */
export function debianPart(name: string, version: string, license: string): Part {
  const purl = `pkg:deb/debian/${name}@${encodeURIComponent(version)}`;
  return { name, version, purl, license };
}
