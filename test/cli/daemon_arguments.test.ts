// Tests invalid command lines of the executable: it reports them, exits with 2 and creates no files.
import { expect, test } from "bun:test";
import { spawnSync } from "node:child_process";
import { executable } from "../harness.ts";

// With its own /run and /var/lib, in case a daemon starts with its defaults nevertheless.
const script = `
  for folder in /run /var/lib; do mount -t tmpfs test $folder || exit 99; done
  cd /run && timeout --signal=KILL 100 "$@" </dev/null >&2
  code=$?
  find /run /var/lib -mindepth 1 ! -path "/run/mount*" # which is mount(8)'s
  exit $code`;

function started(words: string[]) {
  const argv = ["--mount", "sh", "-c", script, "sh", executable, ...words];
  const { status, stdout, stderr } = spawnSync("unshare", argv, { encoding: "utf8" });
  return { code: status, made: stdout, said: stderr.trim() };
}

const see = "See isulad-ts --help.";

test.each([
  ["-g /x -Y /y", `isulad-ts has no option -Y. ${see}`],
  ["-c /etc/isulad/daemon.json", `isulad-ts has no option -c; did you mean --config? ${see}`],
  ["--grpah /x", `isulad-ts has no option --grpah; did you mean --graph? ${see}`],
  ["--graph /run/g stray", `Unexpected argument "stray". ${see}`],
  ["--graph", `--graph needs a value. ${see}`],
  ["--graph=", `--graph has an empty value: omit it for the default. ${see}`],
  ["--graph /run/g --graph /run/h", `--graph is given twice. ${see}`],
  ["stray", "Unknown command stray; did you mean "],
  ["monitor", "Unknown command monitor; did you mean "],
  ["monitor --state state", "Unknown command monitor; did you mean "],
  ["unpack", "Unknown command unpack. See isulad-ts --help."],
  ["netns-sockets", "Unknown command netns-sockets. See isulad-ts --help."],
  ["command-lines now", "Unknown command command-lines. See isulad-ts --help."],
])("isulad-ts %s exits with 2 and creates nothing", (line, said) => {
  const done = started(line.split(" "));
  expect(done).toEqual({ code: 2, made: "", said: expect.stringContaining(said) as string });
});

test("isulad-ts exits with 2 for an empty argument", () => {
  expect(started([""])).toMatchObject({ code: 2, made: "" });
  expect(started(["--graph", "/run/g", ""])).toMatchObject({ code: 2, made: "" });
});

test.each([
  ["--graph /run/g --help", /Usage: isulad-ts daemon /],
  ["daemon -h", /Usage: isulad-ts daemon /],
  ["-h", /Usage: isulad-ts COMMAND/],
  ["--graph /run/g --version", /^isulad-ts \d/],
  ["-V", /^isulad-ts \d/],
])("isulad-ts %s prints its answer and creates nothing", (line, said) => {
  const done = started(line.split(" "));
  expect(done).toMatchObject({ code: 0, made: "" });
  expect(done.said).toMatch(said);
});
