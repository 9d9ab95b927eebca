// Tests which answers of `shim start` are understood, and how a refused first call is repeated.
import { afterAll, describe, expect, test } from "bun:test";
import { chmodSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { toLong } from "../../../src/base/int64.ts";
import { encodeMessage } from "../../../src/base/protobuf.ts";
import { task } from "../../../src/proto/task.js";
import { deleteWithoutShim, parseAddress, startShim } from "../../../src/shim/bootstrap.ts";
import { failure } from "../../expect.ts";

const program = "/opt/containerd-shim-x-v1";
const parse = (answer: string) => parseAddress(answer, program);
const path = "/run/containerd/s/1f0e";

/** The bytes of a BootstrapResult as containerd's shim 2.4.2 prints them. */
function newest(version: number, address: string, protocol = "ttrpc"): string {
  const text = (tag: number, value: string) =>
    String.fromCharCode(tag, Buffer.byteLength(value)) + value;
  return `\b${String.fromCharCode(version)}${text(0x12, address)}${text(0x1a, protocol)}`;
}

describe("the answer of a shim's start", () => {
  test("of containerd 1.6 and 1.7, and Kata's, is the bare address", () => {
    expect(parse(`unix://${path}`)).toEqual({ version: 2, path });
    expect(parse(`unix://${path}\n`)).toEqual({ version: 2, path });
    expect(parse(path)).toEqual({ version: 2, path });
  });

  test("of containerd 2.0 to 2.2, and gVisor's, is JSON", () => {
    const answer = { version: 3, address: `unix://${path}`, protocol: "ttrpc" };
    expect(parse(JSON.stringify(answer))).toEqual({ version: 3, path });
    expect(parse(`${JSON.stringify({ ...answer, version: 2, more: [] })}\n`).version).toBe(2);
  });

  test("of containerd 2.3 and later is a message", () => {
    expect(parse(newest(3, `unix://${path}`))).toEqual({ version: 3, path });
    expect(parse(newest(2, `unix://${path}`)).version).toBe(2);
  });

  test("with another protocol, version or kind of socket is refused, and quoted", () => {
    const refused = {
      grpc: newest(3, `unix://${path}`, "grpc"),
      "version 4": JSON.stringify({ version: 4, address: path, protocol: "ttrpc" }),
      "version 0": JSON.stringify({ address: path }),
      "vsock://3:1024": "vsock://3:1024",
      hvsock: `hvsock://${path}:1024`,
      relative: newest(3, "unix://relative"),
    };
    for (const [word, answer] of Object.entries(refused)) {
      expect(() => parse(answer)).toThrow(word);
      expect(() => parse(answer)).toThrow(`${program} start: `);
    }
  });

  test("that is empty, truncated or something else is refused", () => {
    const cut = newest(3, `unix://${path}`).slice(0, 20);
    for (const answer of ["", "\n", "{", '{"version":', "[]", "panic: no", cut, "\xff\xff\xff"]) {
      expect(() => parse(answer)).toThrow(`${program} start: `);
    }
  });
});

const folder = mkdtempSync(join(tmpdir(), "isulad-shim-"));
afterAll(() => rmSync(folder, { recursive: true, force: true }));

/** Makes a shim of these shell commands; $input is a file with its standard input. */
function shim(script: string) {
  const file = join(folder, "shim");
  writeFileSync(
    file,
    `#!/bin/sh\ninput=${folder}/input\ncat >$input\necho "$@" >>${folder}/calls\n${script}\n`,
  );
  chmodSync(file, 0o755);
  rmSync(join(folder, "calls"), { force: true });
  const options = { type_url: "some.Options", value: Buffer.from("text") };
  const signal = AbortSignal.timeout(10_000);
  return { program: file, id: "c1", bundle: folder, owner: "/here", options, signal };
}
const calls = () => readFileSync(join(folder, "calls"), "utf8").trim().split("\n");
const input = () => readFileSync(join(folder, "input"));

describe("starting a shim", () => {
  test("gives the newest generation its parameters, once", async () => {
    expect(await startShim(shim(`printf unix://${path}`))).toEqual({ version: 2, path });
    const flags = "-namespace isulad -address /here -publish-binary /bin/true -id c1";
    expect(calls()).toEqual([`${flags} start`]);
    const params = task.BootstrapParams.decode(input());
    expect(params).toMatchObject({ instance_id: "c1", namespace: "isulad" });
    expect(params.extensions[0]?.value).toMatchObject({ type_url: "some.Options" });
  });

  test("that fails on them is repeated with the bare options", async () => {
    const older = shim(`grep -q isulad $input && exit 1; printf unix://${path}`);
    expect(await startShim(older)).toEqual({ version: 2, path });
    expect(calls()).toHaveLength(2);
    expect(task.Any.decode(input())).toEqual(task.Any.create(older.options));
  });

  test("that fails twice reports the older shim's error, or the newest's complaint about its input", async () => {
    const older = shim(
      "grep -q isulad $input && { echo first >&2; exit 1; }; echo second >&2; exit 1",
    );
    expect((await failure(startShim(older))).message).toContain("second");
    const newer = shim(
      "grep -q isulad $input && { echo no space >&2; exit 1; }; echo missing bootstrap params >&2; exit 1",
    );
    expect((await failure(startShim(newer))).message).toContain("no space");
  });
});

describe("deleting without a shim", () => {
  test("returns the exit code that the shim's executable reports", async () => {
    const told = { pid: 7, exit_status: 42, exited_at: { seconds: toLong(1), nanos: 0 } };
    writeFileSync(join(folder, "answer"), encodeMessage(task.DeleteResponse, told));
    const deleted = await deleteWithoutShim(shim(`cat ${folder}/answer`));
    expect(deleted).toEqual({ exitCode: 42, pid: 7 });
    expect(calls()[0]).toEndWith(`-id c1 -bundle ${folder} delete`);
  });

  test("returns nothing for an answer without an end, or with a text", async () => {
    expect(await deleteWithoutShim(shim("true"))).toBeUndefined();
    expect(await deleteWithoutShim(shim("echo warning: not mounted"))).toBeUndefined();
  });

  test("fails with the executable's own message", async () => {
    const error = await failure(deleteWithoutShim(shim("echo busy >&2; exit 1")));
    expect(error.message).toContain("delete: busy");
  });
});
