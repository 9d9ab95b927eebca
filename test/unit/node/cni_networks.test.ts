// Tests the choice of the networks to which a pod is attached.
import { expect, test } from "bun:test";
import type { ConfList } from "../../../src/node/cni_conf.ts";
import { podNetworks } from "../../../src/node/cni_networks.ts";

const list = (name: string): ConfList => ({ name, cniVersion: "1.0.0", plugins: [{ type: "x" }] });
const lists: [ConfList, ...ConfList[]] = [list("a"), list("b"), list("c")];
const names = (defaults: number, annotation?: string, allowed = ["*"]) =>
  podNetworks(lists, defaults, { annotation, allowed }).map(
    ({ list: { name }, ifName }) => `${name} ${ifName}`,
  );

test.each<[string, number, string | undefined, string[]]>([
  ["the first list", 1, undefined, ["a eth0"]],
  ["the first two lists", 2, "", ["a eth0", "b eth1"]],
  ["all lists", 0, undefined, ["a eth0", "b eth1", "c eth2"]],
  ["a requested list", 1, '[{"name":"c","interface":"net1"}]', ["a eth0", "c net1"]],
  ["another default network", 1, '[{"name":"c","interface":"eth0"}]', ["c eth0"]],
  ["the default network by name", 1, '[{"name":"a","interface":"eth0"}]', ["a eth0"]],
])("podNetworks() attaches a pod to %s", (_, defaults, annotation, expected) => {
  expect(names(defaults, annotation)).toEqual(expected);
});

test.each([
  ["text that is not JSON", "x", "must be a list such as"],
  ["an invalid interface", '[{"name":"c","interface":"lo"}]', "must be a list such as"],
  [
    "an unknown network",
    '[{"name":"z","interface":"net1"}]',
    'no network "z" that pods may ask for',
  ],
  ["an attached network", '[{"name":"a","interface":"net1"}]', "network a is already attached"],
  ["a used interface", '[{"name":"c","interface":"eth1"}]', "interface eth1 is already in use"],
  [
    "the default interface twice",
    '[{"name":"c","interface":"eth0"},{"name":"a","interface":"eth0"}]',
    "interface eth0 is already in use",
  ],
])("podNetworks() refuses %s", (_, annotation, message) => {
  expect(() => names(2, annotation)).toThrow(message);
});

test("podNetworks() gives only networks that pods may ask for, and names no others", () => {
  const asked = (name: string) => `[{"name":"${name}","interface":"net1"}]`;
  expect(names(1, asked("b"), ["x", "b*"])).toEqual(["a eth0", "b net1"]);
  const own = '[{"name":"a","interface":"eth0"}]';
  expect(names(1, own, [])).toEqual(["a eth0"]);
  for (const [name, allowed] of [
    ["c", ["b"]],
    ["z", ["b"]],
    ["b", []],
  ] as const) {
    const problem = `there is no network "${name}" that pods may ask for (pod-networks)`;
    const message = `annotation network.alpha.kubernetes.io/network: ${problem}`;
    expect(() => names(1, asked(name), [...allowed])).toThrow(new Error(message));
  }
});
