// Tests how a container or pod is found by path, name or id, and what is said when it is not.
import { expect, test } from "bun:test";
import { type Candidate, choose } from "../../../src/cli/lookup.ts";

const nowNs = BigInt(Date.now()) * 1_000_000n;
const hourNs = 3_600_000_000_000n;

function candidate(id: string, path: string, attempt = 0, state = "Running"): Candidate {
  return { id: id.padEnd(64, "0"), path, attempt, createdNs: nowNs - 2n * hourNs, state };
}

const containers = [
  candidate("aa1", "default/web/nginx", 0, "Exited"),
  candidate("aa2", "default/web/nginx", 1),
  candidate("ab3", "default/web/log"),
  candidate("bc4", "kube-system/dns/coredns"),
  candidate("cd5", "test/web/nginx"),
];
const pods = [
  candidate("f1", "default/web", 0, "NotReady"),
  candidate("f2", "default/web", 1, "Ready"),
  candidate("e3", "test/web", 0, "Ready"),
];

test.each([
  ["aa1", "aa1"],
  ["ab", "ab3"],
  ["default/web/nginx", "aa2"], // the newest attempt
  ["log", "ab3"],
  ["coredns", "bc4"],
  ["dns", "bc4"], // the only container of the pod of this name
  ["kube-system/dns", "bc4"],
  ["test/web", "cd5"],
])("container %s is %s…", (text, id) => {
  expect(choose("container", text, containers).id).toBe(id.padEnd(64, "0"));
});

test.each([
  ["f1", "f1"],
  ["default/web", "f2"],
  ["e", "e3"],
])("pod %s is %s…", (text, id) => {
  expect(choose("pod", text, pods).id).toBe(id.padEnd(64, "0"));
});

test("a whole id is no prefix of others", () => {
  const nested = [candidate("a", "n/p/c"), { ...candidate("b", "n/p/d"), id: "a" }];
  expect(choose("container", "a", nested).path).toBe("n/p/d");
});

const row = (id: string, path: string) =>
  `\n  ${id.padEnd(13, "0")}  ${path}  Running, created 2 hours ago`;

test.each([
  [
    "nginx",
    `"nginx" matches 2 containers: give namespace/pod/container, or more of the id${row("aa2", "default/web/nginx")}${row("cd5", "test/web/nginx   ")}`,
  ],
  [
    "default/web",
    `"default/web" matches 2 containers: give namespace/pod/container, or more of the id${row("aa2", "default/web/nginx")}${row("ab3", "default/web/log  ")}`,
  ],
  ["a", /^"a" matches 3 containers/],
  ["cored", "container cored not found; did you mean coredns? isulad-ts ps -a lists all"],
  [
    "default/web/nginz",
    "container default/web/nginz not found; did you mean default/web/nginx? isulad-ts ps -a lists all",
  ],
  ["0badf00d", "container 0badf00d not found: isulad-ts ps -a lists all"],
  ["nginx/", /not found/],
  ["", /not found/],
])("container %j is refused", (text, message) => {
  expect(() => choose("container", text, containers)).toThrow(message);
});

test("pods are named by their own command, and only the first ten candidates are listed", () => {
  expect(() => choose("pod", "wev", pods)).toThrow("did you mean web? isulad-ts pods lists all");
  const many = Array.from({ length: 12 }, (_, i) => candidate(`a${i}`, `n${i}/web`));
  expect(() => choose("pod", "web", many)).toThrow(
    /^"web" matches 12 pods: give namespace\/pod,[^]*\n  and 2 more$/,
  );
});

test("the code tells a wrong name from an ambiguous one", () => {
  expect(() => choose("pod", "x", [])).toThrow(expect.objectContaining({ code: "NOT_FOUND" }));
  const ambiguous = expect.objectContaining({ code: "INVALID_ARGUMENT" });
  expect(() => choose("pod", "web", pods)).toThrow(ambiguous);
});
