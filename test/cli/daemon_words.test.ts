// The executable with words that no daemon takes: it says so, exits with 2 and makes nothing.
import { expect, test } from "bun:test";
import { spawnSync } from "node:child_process";
import { executable } from "../harness.ts";

// With /run and /var/lib of its own: a daemon that starts in spite of the words does so with its defaults.
const script = `
  for folder in /run /var/lib; do mount -t tmpfs test $folder || exit 99; done
  cd /run && timeout --signal=KILL 10 "$@" </dev/null >&2
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
  ["-c /etc/isulad/daemon.json", `isulad-ts has no option -c; is it --config? ${see}`],
  ["--grpah /x", `isulad-ts has no option --grpah; is it --graph? ${see}`],
  ["--graph /run/g stray", `Unexpected word "stray". ${see}`],
  ["--graph", `--graph needs a value. ${see}`],
  ["--graph=", `--graph has an empty value: leave it out for the default. ${see}`],
  ["--graph /run/g --graph /run/h", `--graph is given twice. ${see}`],
  ["stray", `Unknown command stray; is it stop? ${see}`],
  ["monitor", "Unknown command monitor; is it "],
  ["monitor --state state", "Unknown command monitor; is it "],
  ["unpack", "Unknown command unpack; is it "],
  ["netns-sockets", "Unknown command netns-sockets; is it "],
])("isulad-ts %s exits with 2 and makes nothing", (line, said) => {
  const done = started(line.split(" "));
  expect(done).toEqual({ code: 2, made: "", said: expect.stringContaining(said) as string });
});

test("isulad-ts exits with 2 for an empty word", () => {
  expect(started([""])).toMatchObject({ code: 2, made: "" });
  expect(started(["--graph", "/run/g", ""])).toMatchObject({ code: 2, made: "" });
});

test.each([
  ["--graph /run/g --help", /USAGE isulad-ts/],
  ["-h", /USAGE isulad-ts/],
  ["--graph /run/g --version", /^isulad-ts \d/],
  ["-V", /^isulad-ts \d/],
])("isulad-ts %s answers and makes nothing", (line, said) => {
  const done = started(line.split(" "));
  expect(done).toMatchObject({ code: 0, made: "" });
  expect(done.said).toMatch(said);
});
