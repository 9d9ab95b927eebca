// Tests SELinux support without an SELinux kernel: policy files are made up, and every kernel stores labels of
// files for root.
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { checkLabel, openSelinux, relabel } from "../../src/node/selinux.ts";
import { lgetxattr, mkfifo, setSelinuxLabel } from "../../src/sys/path.ts";
import { failure } from "../expect.ts";
import { codeAndMessage } from "../spec/inputs.ts";

const label = "system_u:object_r:container_file_t:s0:c1,c2";
let folder: string;
beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), "isulad-selinux-"));
});
afterAll(() => rmSync(folder, { recursive: true, force: true }));

/** Creates a root folder with these files. */
function rootWith(files: Record<string, string>): string {
  const root = mkdtempSync(join(folder, "root-"));
  for (const [path, text] of Object.entries(files)) {
    mkdirSync(dirname(join(root, path)), { recursive: true });
    writeFileSync(join(root, path), text);
  }
  return root;
}

function labelOf(path: string): string | undefined {
  const bytes = lgetxattr(path, "security.selinux");
  return bytes && new TextDecoder().decode(bytes);
}

describe("openSelinux()", () => {
  const contexts = (type: string) => `process = "u:r:${type}:s0"\nfile = "u:object_r:f:s0"\n`;
  const kernel = { "sys/fs/selinux/enforce": "1", "sys/fs/selinux/context": "" };
  const lxc = "etc/selinux/targeted/contexts/lxc_contexts";

  test("labels nothing if the kernel or the configuration has SELinux off", () => {
    expect(openSelinux(false, rootWith({}))).toEqual({});
    expect(openSelinux(true, rootWith({})).problem).toContain("SELinux is off");
    expect(openSelinux(false, rootWith(kernel))).toEqual({ selinux: {} });
  });

  test("reads the labels of container-selinux, else of the configured policy", () => {
    const policy = (files: Record<string, string>) =>
      openSelinux(true, rootWith({ ...kernel, ...files })).selinux?.policy?.process;
    const shared = { "usr/share/containers/selinux/contexts": contexts("shared_t") };
    const chosen = {
      "etc/selinux/config": "# SELINUXTYPE=mls\nSELINUX=enforcing\nSELINUXTYPE=targeted\n",
      [lxc]: contexts("lxc_t"),
    };
    expect(policy({ ...shared, ...chosen })).toBe("u:r:shared_t:s0");
    expect(policy(chosen)).toBe("u:r:lxc_t:s0");
  });

  test("refuses to start if the policy has no labels for containers", () => {
    const unchosen = { ...kernel, [lxc]: contexts("t") };
    for (const root of [rootWith(kernel), rootWith(unchosen)]) {
      expect(codeAndMessage(() => openSelinux(true, root))).toMatch(
        /^FAILED_PRECONDITION: .*container-selinux/,
      );
    }
  });

  test("checkLabel() names a label that the kernel rejects", () => {
    const root = rootWith(kernel);
    checkLabel(label, root);
    rmSync(join(root, "sys/fs/selinux/context"));
    symlinkSync("/dev/full", join(root, "sys/fs/selinux/context"));
    expect(codeAndMessage(() => checkLabel(label, root))).toMatch(
      new RegExp(`^INVALID_ARGUMENT: .*${label}`),
    );
  });
});

describe("relabel()", () => {
  const signal = AbortSignal.timeout(60_000);

  test("labels a tree recursively without following links", async () => {
    const [tree, outside] = [rootWith({ "a/b": "", c: "" }), rootWith({ secret: "" })];
    mkfifo(join(tree, "fifo"), 0o600);
    symlinkSync(join(outside, "secret"), join(tree, "a/link"));
    symlinkSync(outside, join(tree, "folder"));
    await relabel([join(tree, "a"), tree], label, signal);
    for (const name of ["", "a", "a/b", "a/link", "c", "fifo", "folder"]) {
      expect([name, labelOf(join(tree, name))]).toEqual([name, `${label}\0`]);
    }
    expect([labelOf(outside), labelOf(join(outside, "secret"))]).toEqual([undefined, undefined]);
  });

  test("refuses system directories before it labels anything", async () => {
    const root = rootWith({ a: "" });
    const error = await failure(relabel([root, "/etc"], label, signal));
    expect([error.code, error.message]).toEqual([
      "INVALID_ARGUMENT",
      expect.stringContaining("selinux_relabel of /etc"),
    ]);
    expect(labelOf(root)).toBeUndefined();
  });

  test("ignores removed files and file systems without labels, and respects its deadline", async () => {
    await relabel([join(folder, "gone"), "/proc/self/net/dev"], label, signal);
    const late = await failure(relabel([folder], label, AbortSignal.timeout(0)));
    expect(late.code).toBe("DEADLINE_EXCEEDED");
  });
});

test("setSelinuxLabel() labels a FIFO as relabel() would", () => {
  const path = join(rootWith({}), "fifo");
  mkfifo(path, 0o600);
  setSelinuxLabel(path, label);
  expect(labelOf(path)).toBe(`${label}\0`);
});
