// Tests that an overlay's line in the mount table stays short enough for the programs that read it.
import { expect, test } from "bun:test";
import { codeOf } from "../../../src/base/errors.ts";
import { pathsForTable, type Stack } from "../../../src/layer/overlay_paths.ts";

const stackOf = (graph: string, layers: number, name = "0123456789ab"): Stack => {
  const pathsIn = (trees: string, dir: string) => ({
    below: Array.from({ length: layers }, () => `${trees}/${name}`),
    upper: `${dir}/upper`,
    work: `${dir}/work`,
  });
  return {
    named: pathsIn(`${graph}/layers/l`, `${graph}/containers/c`),
    short: pathsIn("/proc/self/fd/12345", "/proc/self/fd/12346"),
    options: [["index", "off"]],
    readonly: false,
  };
};

test.each<[string, string, number, "named" | "short"]>([
  ["450 layers under the default graph", "/var/lib/isulad", 450, "named"],
  ["450 layers under a graph of 200 bytes", `/${"g".repeat(199)}`, 450, "short"],
  [
    "450 layers under a graph of spaces, which are shown as four bytes",
    "/a b c d e f g h i j k l m",
    450,
    "short",
  ],
  ["120 layers under a graph of 200 bytes", `/${"g".repeat(199)}`, 120, "named"],
  ["127 layers under a graph of 225 bytes", `/${"g".repeat(224)}`, 127, "short"],
  ["one layer under a graph of 250 bytes", `/${"g".repeat(249)}`, 1, "short"],
  ["one layer", "/g", 1, "named"],
])("%s", (_, graph, layers, form) => {
  const stack = stackOf(graph, layers);
  const chosen = pathsForTable(stack, `${graph}/containers/c/rootfs`);
  expect(chosen === stack.named ? "named" : "short").toBe(form);
});

test("more than a line may have is refused", () => {
  const stack = stackOf("/g", 450, "x".repeat(64));
  const codes = [stack, { ...stackOf("/g", 450), label: "l".repeat(20_000) }].map((one) => {
    try {
      return pathsForTable(one, "/g/containers/c/rootfs");
    } catch (error) {
      return codeOf(error);
    }
  });
  expect(codes).toEqual(["FAILED_PRECONDITION", "FAILED_PRECONDITION"]);
});
