// Tests reading and following container logs.
import { afterAll, expect, spyOn, test } from "bun:test";
import { appendFileSync, mkdtempSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { open } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { sinceMsOf } from "../../../src/cli/logs.ts";
import { type LogOptions, readLog } from "../../../src/cli/log_file.ts";

const dir = mkdtempSync(join(tmpdir(), "isulad-log-"));
const path = join(dir, "0.log");
afterAll(() => rmSync(dir, { recursive: true }));

const time = "2026-11-21T14:28:00.123456789Z";
const entries = (...texts: string[]) => texts.map((text) => `${time} ${text}\n`).join("");

async function read(options: LogOptions = {}): Promise<string[]> {
  const seen: string[] = [];
  for await (const { stream, bytes } of readLog(path, options)) {
    seen.push(`${stream}: ${new TextDecoder().decode(bytes)}`);
  }
  return seen;
}

test("readLog joins partial entries, keeps the streams' order and empty lines", async () => {
  writeFileSync(path, entries("stdout P ab", "stdout F c", "stderr F no", "stdout F ", "stdout F"));
  expect(await read()).toEqual(["stdout: abc\n", "stderr: no\n", "stdout: \n\n"]);
});

test("readLog shows the time once per line, and other formats unchanged", async () => {
  writeFileSync(path, entries("stdout P a", "stdout F b") + "free text\n");
  expect(await read({ timestamps: true })).toEqual([`stdout: ${time} ab\nfree text\n`]);
});

test("readLog starts with the last lines, each complete", async () => {
  writeFileSync(
    path,
    entries("stdout F 1", "stdout P 2", "stdout P 2", "stdout F 2", "stderr F 3"),
  );
  expect(await read({ tail: 2 })).toEqual(["stdout: 222\n", "stderr: 3\n"]);
  expect(await read({ tail: 0 })).toEqual([]);
  expect(await read({ tail: 99 })).toHaveLength(2);
  writeFileSync(path, entries("stdout F 1", "stdout P 2", "stdout P 2"));
  expect(await read({ tail: 1 })).toEqual(["stdout: 22"]);
});

test("readLog finds the last lines of a large file with lines of many sizes", async () => {
  const lines = Array.from({ length: 3000 }, (item, i) => `${i} ${"x".repeat((i * 37) % 300)}`);
  writeFileSync(path, entries(...lines.map((line) => `stdout F ${line}`)));
  for (const tail of [1, 100, 1500, 2999, 3000]) {
    const seen = (await read({ tail })).map((piece) => piece.replace("stdout: ", ""));
    expect(seen.join("")).toBe(`${lines.slice(-tail).join("\n")}\n`);
  }
});

type Readable = { read: (...o: unknown[]) => Promise<{ bytesRead: number }> };

test("readLog loses nothing that is written before a rotation but after its last read", async () => {
  writeFileSync(path, entries("stdout F 1"));
  const file = await open(path);
  const prototype = Object.getPrototypeOf(file) as Readable;
  await file.close();
  const ended = new AbortController();
  let rotations = 0;
  const { read: readFile } = prototype;
  using _ = spyOn(prototype, "read").mockImplementation(async function (this: Readable, ...o) {
    const result = await readFile.apply(this, o);
    if (result.bytesRead > 0 || rotations === 2) return result;
    // The reader takes this for the end of the log.
    // The second one comes while the first old file is read again.
    appendFileSync(path, entries(`stdout F old ${++rotations}`));
    renameSync(path, `${path}.${rotations}`);
    const create = () => writeFileSync(path, entries(`stdout F new ${rotations}`));
    if (rotations === 1) create();
    else
      setTimeout(() => {
        create();
        ended.abort();
      }, 20); // as late as the kubelet asks for it
    return result;
  });
  const seen = (await read({ follow: ended.signal })).join("").replaceAll("stdout: ", "");
  expect(seen).toBe("1\nold 1\nnew 1\nold 2\nnew 2\n");
});

test("readLog follows through rotation and truncation until it is aborted", async () => {
  writeFileSync(path, entries("stdout F 1"));
  const ended = new AbortController();
  const seen: string[] = [];
  const reading = (async () => {
    for await (const { bytes } of readLog(path, { follow: ended.signal })) {
      seen.push(new TextDecoder().decode(bytes).trim());
    }
  })();
  const until = async (count: number) => {
    while (seen.length < count) await Bun.sleep(2);
  };
  await until(1);
  appendFileSync(path, `${time} stdout F 2`); // The rest of this line comes later.
  await Bun.sleep(20);
  expect(seen).toEqual(["1"]);
  appendFileSync(path, "\n");
  await until(2);
  renameSync(path, `${path}.old`);
  appendFileSync(`${path}.old`, entries("stdout F 3"));
  await Bun.sleep(20);
  writeFileSync(path, entries("stdout F 4, which is longer"));
  await until(4);
  writeFileSync(path, entries("stdout F 5")); // shorter, so that the reader sees the truncation whenever it looks
  await until(5);
  appendFileSync(path, entries("stdout F 6"));
  ended.abort(); // What was written before is still read.
  await reading;
  expect(seen).toEqual(["1", "2", "3", "4, which is longer", "5", "6"]);
});

test("readLog of a missing file fails with ENOENT", async () => {
  rmSync(path, { force: true });
  expect(await read().catch((error) => error.code)).toBe("ENOENT");
});

test("readLog skips what is older, and the other stream", async () => {
  const later = "2026-11-21T15:00:00.5+00:00";
  writeFileSync(path, `${entries("stdout F old")}${later} stdout F new\n${later} stderr F err\n`);
  const sinceMs = Date.parse("2026-11-21T15:00:00Z");
  expect(await read({ sinceMs })).toEqual(["stdout: new\n", "stderr: err\n"]);
  expect(await read({ sinceMs: sinceMs + 501 })).toEqual([]);
  expect(await read({ only: "stderr" })).toEqual(["stderr: err\n"]);
});

test("--since takes a duration or a time", () => {
  const nowMs = Date.parse("2026-11-21T15:00:00Z");
  expect(sinceMsOf("1h30m", nowMs)).toBe(Date.parse("2026-11-21T13:30:00Z"));
  expect(sinceMsOf("2026-11-21T15:00:00.25+01:00")).toBe(nowMs - 3_600_000 + 250);
  for (const text of ["yesterday", "2026-11-21", "-5s", "5", "2026-13-41T99:00:00Z"]) {
    expect(() => sinceMsOf(text)).toThrow("--since takes a duration");
  }
});
