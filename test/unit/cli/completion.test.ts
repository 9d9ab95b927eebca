// Tests what completion suggests for a command line, and that no shell refuses its script.
import { expect, test } from "bun:test";
import { spawnSync } from "node:child_process";
import { groups } from "../../../src/cli/commands.ts";
import { type LiveNames, namesOf, suggestions } from "../../../src/cli/completion.ts";
import { bashScript, fishScript, zshScript } from "../../../src/cli/completion_scripts.ts";

const id = "4f2a".padEnd(64, "0");
const names: Record<string, string[]> = {
  container: ["default/web/nginx", "nginx", id],
  pod: ["default/web"],
  image: ["docker.io/library/busybox:1"],
};
const live: LiveNames = (kind) => Promise.resolve(names[kind]!.map((name) => [name, ""]));

async function suggested(line: string, from = live): Promise<string[]> {
  return (await suggestions(groups, line.split(" "), from)).map(([word]) => word);
}

test.each([
  ["inspec", ["inspectp", "inspect", "inspecti"]],
  ["compl", ["completion"]], // not the hidden command
  ["config ", ["check", "show", "default", "migrate"]],
  ["images ve", ["verify"]],
  ["nosuch ", []],
  ["valueOf ", []],
  ["logs ", ["default/web/nginx", "nginx"]],
  ["logs def", ["default/web/nginx"]],
  ["logs -f 4", [id]],
  ["logs --tail 5 ng", ["nginx"]],
  ["logs --tail ", []],
  ["logs 4f2a ", []], // takes one container
  ["rm 4f2a ng", ["nginx"]], // takes several
  ["ps --pod ", names["pod"]!],
  ["ps -ap ", names["pod"]!],
  ["ps -o ", ["table", "json", "yaml", "go-template"]],
  ["ps --p", ["--pod"]],
  ["ps --no", ["--no-trunc"]],
  ["rmi ", names["image"]!],
  ["port-forward default/web ", []],
  ["daemon --log-l", ["--log-level"]],
  ["-H unix:///x inspec", ["inspectp", "inspect", "inspecti"]],
  ["--host unix:///x logs def", ["default/web/nginx"]],
  ["--host unix:///x", []],
])("isulad-ts %s is completed with %j", async (line, expected) => {
  expect(await suggested(line)).toEqual(expected);
});

test.each([
  ["docker.io/library/busybox:1", ["docker.io/library/busybox:1", "busybox:1"]],
  ["docker.io/team/app:1", ["docker.io/team/app:1", "team/app:1"]],
  ["registry.example/app:1", ["registry.example/app:1"]],
])("image %s is suggested as %j", (tag, names) => {
  expect(namesOf(tag)).toEqual(names);
});

test("without a daemon nothing is suggested, and nothing fails", async () => {
  expect(await suggested("logs ", () => Promise.reject(new Error("no daemon")))).toEqual([]);
});

test.each([
  ["bash", bashScript],
  ["zsh", zshScript],
  ["fish", fishScript],
])("%s parses its script, where it is installed", (shell, text) => {
  const { status, stderr, error } = spawnSync(shell, ["-n"], { input: text, encoding: "utf8" });
  if (error === undefined) expect({ status, stderr }).toEqual({ status: 0, stderr: "" });
});

test("zsh shows what a word means only if that is known, where zsh is installed", () => {
  const script = [
    "compdef() { :; }",
    '_describe() { print -rl -- "${(@)found}"; }',
    "isulad-ts() { printf 'json\\ndefault/web\\tReady: yes\\nbusy:1\\n'; }",
    'words=(isulad-ts inspect -o ""); CURRENT=4',
    zshScript,
    "_isulad_ts",
  ].join("\n");
  const { stdout, error } = spawnSync("zsh", ["-f"], { input: script, encoding: "utf8" });
  const lines = ["json", String.raw`default/web:Ready\: yes`, String.raw`busy\:1`, ""];
  if (error === undefined) expect(stdout.split("\n")).toEqual(lines);
});
