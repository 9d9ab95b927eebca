// Tests NetworkReady for handlers with CNI folders of their own.
import { expect, test } from "bun:test";
import type { Context, Handler } from "../../../src/cri/context.ts";
import { networkCondition } from "../../../src/cri/network_condition.ts";

/** handlers: their folders by name; broken: the folders whose network is not ready. */
function condition(handlers: Record<string, string | undefined>, broken: (string | undefined)[]) {
  const entries = Object.entries(handlers).map(([name, confDir]) => [
    name,
    { cniLists: { confDir } },
  ]);
  const asked: (string | undefined)[] = [];
  const cni: Pick<Context["cni"], "status"> = {
    status: async (own) => {
      const confDir = own?.confDir;
      asked.push(confDir);
      const ready = !broken.includes(confDir);
      const reason = ready ? "" : "NetworkPluginNotReady";
      return { ready, reason, message: ready ? "" : `${confDir} is empty` };
    },
  };
  const context = { cni, handlers: new Map(entries as unknown as [string, Handler][]) };
  return networkCondition(context).then((found) => ({ ...found, asked }));
}

const handlers = { runc: undefined, fast: "/a", faster: "/a", other: "/b", "": undefined };

test("is that of the default folder where the default handler has no other", async () => {
  expect(await condition(handlers, [undefined])).toMatchObject({
    status: false,
    reason: "NetworkPluginNotReady",
    message: "undefined is empty",
  });
});

test("is that of the default handler's own folder", async () => {
  const own = { runc: "/a", fast: undefined, "": "/a" };
  expect(await condition(own, ["/a"])).toMatchObject({ status: false, message: "/a is empty" });
  expect(await condition(own, [])).toMatchObject({ status: true, message: "" });
});

test("stays true without another handler's network, and names it; each folder is asked once", async () => {
  expect(await condition(handlers, ["/a"])).toEqual({
    type: "NetworkReady",
    status: true,
    reason: "",
    message: "pods of fast, faster cannot start: /a is empty",
    asked: [undefined, "/a", "/b"],
  });
});
