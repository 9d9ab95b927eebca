// Tests the executables of all targets (libraries and symbol versions that they need), and the source under
// Deno.
import { afterAll, describe, expect, test } from "bun:test";
import { spawn, spawnSync } from "node:child_process";
import { closeSync, mkdtempSync, openSync, readSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { connect } from "../src/cli/client.ts";
import { until } from "./expect.ts";
import { executable } from "./harness.ts";

const root = join(import.meta.dirname, "..");
const scratch = mkdtempSync(join(tmpdir(), "isulad-dist-"));
afterAll(() => rmSync(scratch, { recursive: true, force: true }));

/** Reads the strings of an ELF file's dynamic section: needed libraries, versions of symbols. */
function dynamicStrings(file: string): { machine: number; strings: string[] } {
  const fd = openSync(file, "r");
  const read = (at: bigint | number, size: bigint | number) => {
    const bytes = Buffer.alloc(Number(size));
    readSync(fd, bytes, 0, bytes.length, Number(at));
    return bytes;
  };
  try {
    const header = read(0, 64);
    const at = header.readBigUInt64LE(40);
    const [size, count] = [header.readUInt16LE(58), header.readUInt16LE(60)];
    const table = read(at, size * count);
    const stringsOf: string[] = [];
    for (let index = 0; index < count; index++) {
      const entry = table.subarray(index * size, (index + 1) * size);
      const isDynamic = entry.readUInt32LE(4) === 3 && (entry.readBigUInt64LE(8) & 2n) !== 0n;
      if (!isDynamic) continue; // a loaded SHT_STRTAB: .dynstr
      const bytes = read(entry.readBigUInt64LE(24), entry.readBigUInt64LE(32));
      stringsOf.push(...bytes.toString("latin1").split("\0"));
    }
    return { machine: header.readUInt16LE(18), strings: stringsOf };
  } finally {
    closeSync(fd);
  }
}

const libc =
  /^(libc|libm|libdl|libpthread|librt)\.so\.\d$|^ld-linux[\w-]*\.so\.\d$|^linux-vdso\.so\.1$/;

function newestGlibc(strings: string[]): number {
  const minors = strings.map((text) => Number(/^GLIBC_2\.(\d+)/.exec(text)?.[1] ?? 0));
  return Math.max(...minors);
}

describe("the executable", () => {
  test("needs only its libc, by ldd", () => {
    const { stdout } = spawnSync("ldd", [executable], { encoding: "utf8" });
    const names = stdout
      .trim()
      .split("\n")
      .map((line) => line.trim().split(" ")[0]!.replace(/^.*\//, ""));
    expect(names).toContain("libc.so.6");
    expect(names.filter((name) => !libc.test(name))).toEqual([]);
  });

  test("runs with glibc 2.17", () => {
    const minor = newestGlibc(dynamicStrings(executable).strings);
    expect(minor).toBeGreaterThan(0);
    expect(minor).toBeLessThanOrEqual(17);
  });

  test("reads no .env or bunfig.toml of its working directory, and ignores Bun's variables", () => {
    writeFileSync(join(scratch, ".env"), "BUN_OPTIONS=--version\n");
    writeFileSync(join(scratch, "bunfig.toml"), 'preload = ["./evil.ts"]\n');
    writeFileSync(join(scratch, "evil.ts"), 'console.log("EVIL"); process.exit(9);\n');
    const done = spawnSync(executable, ["--version"], { cwd: scratch, encoding: "utf8" });
    expect(done).toMatchObject({ status: 0, stderr: "" });
    expect(done.stdout).not.toContain("EVIL");
  });

  // ELF machine numbers: 62 x86-64, 183 arm64.
  test.each([
    ["linux-arm64", 183],
    ["linux-x64-baseline", 62],
    ["linux-x64-musl", 62],
  ])("is built for %s as well", (target, machine) => {
    const done = spawnSync(process.execPath, ["dist/build.ts", target], {
      cwd: root,
      encoding: "utf8",
    });
    expect(done.stderr).toBe("");
    const facts = dynamicStrings(join(root, "dist", `isulad-ts-${target}`));
    expect(facts.machine).toBe(machine);
    if (!target.includes("musl")) expect(newestGlibc(facts.strings)).toBeLessThanOrEqual(17);
    const libraries = facts.strings.filter((text) => /\.so(\.\d+)?$/.test(text));
    const more = /^libc\.musl-\w+\.so\.1$|^libstdc\+\+\.so\.6$/; // Bun's musl build takes the C++ one
    const wanted = target.includes("musl") ? more : libc;
    expect(libraries.filter((name) => !wanted.test(name))).toEqual([]);
  });
});

describe("the source under Deno", () => {
  test("serves Version and Status", async () => {
    const socket = join(scratch, "deno.sock");
    const config = {
      hosts: [`unix://${socket}`],
      graph: join(scratch, "graph"),
      state: join(scratch, "state"),
      pidfile: join(scratch, "pid"),
      "cni-conf-dir": join(scratch, "cni"),
    };
    writeFileSync(join(scratch, "daemon.json"), JSON.stringify(config));
    const deno = join(root, "node_modules/.bin/deno");
    const argv = ["run", "-A", "src/main.ts", "--config", join(scratch, "daemon.json")];
    const child = spawn(deno, argv, {
      cwd: root,
      detached: true,
      stdio: ["ignore", "pipe", "pipe"],
    });
    let said = "";
    for (const stream of [child.stdout, child.stderr]) {
      stream.on("data", (data: Buffer) => {
        said += data.toString();
      });
    }
    using client = connect(`unix://${socket}`);
    try {
      await until("it answers", async () => {
        if (child.exitCode !== null) throw new Error(`the daemon exited:\n${said}`);
        const version = await client.Version({}, { timeoutMs: 1000 }).catch(() => undefined);
        return version?.runtime_api_version === "v1";
      });
      const { status } = await client.Status({});
      expect(status?.conditions?.find((one) => one.type === "RuntimeReady")?.status).toBe(true);
    } finally {
      process.kill(-child.pid!, "SIGTERM"); // npm's deno is a wrapper of the real one
      // The monitor ends seconds later, and recreates its folder until then.
      const processes = () => spawnSync("pgrep", ["-f", scratch]);
      await until("daemon and monitor have ended", () => processes().status === 1);
    }
  });
});
