// Tests some interrupted pulls with a fixed seed (test/pulls.ts runs many), and tests the checker with
// planted faults.
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import * as fs from "node:fs";
import { join } from "node:path";
import { CutPulls, growth, planOf } from "./pulls.ts";

let pulls: CutPulls;
beforeAll(async () => {
  pulls = await CutPulls.open();
});
afterAll(async () => await pulls?.[Symbol.asyncDispose]());

test.each(planOf(5, 4, 7))(
  "$number, $cut, seed $seed: clean, pulls again, no space lost",
  async (round) => {
    expect((await pulls.round(round)).problems).toEqual([]);
  },
  120_000,
);

describe("the checker finds", () => {
  const layers = () => join(pulls.graph, "layers");
  const aTree = () =>
    join(
      layers(),
      "l",
      fs.readdirSync(join(layers(), "l")).find((name) => name !== "empty")!,
    );
  const aFile = (end: string) =>
    join(
      layers(),
      fs.readdirSync(layers()).find((name) => name.endsWith(end))!,
    );
  const anImage = () =>
    join(pulls.graph, "images", fs.readdirSync(join(pulls.graph, "images"))[0]!);

  const plants: [string, () => string, string][] = [
    ["a strange tree", () => made(join(layers(), "l/0123456789ab")), "the tree 0123456789ab"],
    ["a scratch folder", () => made(join(layers(), "scratch/x")), "scratch/x is left"],
    ["a strange list", () => written(join(layers(), "0123456789ab.list")), "0123456789ab.list"],
    ["a temporary file", () => written(join(pulls.graph, "images/x.tmp")), "images/x.tmp is left"],
    [
      "a strange file in a layer",
      () => written(join(aTree(), "stranger")),
      "is not part of the layer",
    ],
    ["a lost tree", () => moved(aTree()), "is lost"],
    ["a lost record of a layer", () => moved(aFile(".json")), "is lost"],
    ["a lost list", () => moved(aFile(".list")), "is unknown"],
    ["an image without its record", () => moved(anImage()), "is needless"],
  ];

  /** Each returns a function that removes the fault. */
  function made(path: string): string {
    fs.mkdirSync(path);
    return path;
  }
  function written(path: string): string {
    fs.writeFileSync(path, "x");
    return path;
  }
  function moved(path: string): string {
    fs.renameSync(path, join(pulls.daemon.dir, "graph/aside"));
    return `>${path}`;
  }

  test.each(plants)("%s", async (_, plant, what) => {
    await pulls.pullAll();
    expect(await pulls.faults()).toEqual([]);
    const planted = plant();
    const faults = await pulls.faults();
    if (planted.startsWith(">")) fs.renameSync(join(pulls.graph, "aside"), planted.slice(1));
    else fs.rmSync(planted, { recursive: true });
    expect(faults.join("\n")).toContain(what);
  });

  test("lost space", () => {
    expect(growth({ bytes: 5, files: 5 }, { bytes: 9, files: 5 })).toEqual(["4 bytes more"]);
    expect(growth({ bytes: 5, files: 5 }, { bytes: 5, files: 6 })).toEqual(["1 files more"]);
    expect(growth({ bytes: 5, files: 5 }, { bytes: 4, files: 5 })).toEqual([]);
  });
});
