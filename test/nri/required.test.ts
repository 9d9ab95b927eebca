// Tests required plugins, without which no pod or container is created.
import { afterAll, beforeAll, expect, test as anyTest } from "bun:test";
import { nri } from "../../src/proto/nri.js";
import { failure, until } from "../expect.ts";
import { type Daemon, startDaemon } from "../harness.ts";
import { hasGo, Plugins, type Behaviour } from "./plugins.ts";
import { RawPlugin } from "./raw_plugin.ts";

const api = nri.pkg.api.v1alpha1;

const test = anyTest.skipIf(!hasGo);
const plugins = new Plugins();
let daemon: Daemon;

beforeAll(async () => {
  if (!hasGo) return;
  const keys = { "nri-required-plugins": ["guard"] };
  daemon = await startDaemon({ config: plugins.config(keys) });
}, 180_000);
afterAll(async () => {
  await daemon?.[Symbol.asyncDispose]();
  plugins[Symbol.dispose]();
});

test("creations fail and name the missing plugin until it is in service", async () => {
  const config = daemon.hostPodConfig();
  const before = daemon.snapshot();
  expect(await failure(daemon.runPod(config))).toMatchObject({
    code: "UNAVAILABLE",
    message: expect.stringContaining("needs NRI plugin guard"),
  });
  expect(await daemon.leaksSince(before)).toEqual([]);
  const child = await plugins.start("10-guard", "v061");
  const id = await daemon.runPod(config);
  const running = await daemon.run(id, config, ["sleep", "600"]);
  await plugins.end(child);
  expect((await failure(daemon.create(id, config, ["true"]))).code).toBe("UNAVAILABLE");
  await daemon.client.StopContainer({ container_id: running });
  await daemon.removePod(id);
});

test("the socket of another program is not replaced", async () => {
  const other = startDaemon({ config: plugins.config(), network: false, image: false });
  const why = await other.then(
    () => "it has started",
    (error: Error) => error.message,
  );
  expect(why).toMatch(/another program answers on .*nri-socket-path/);
});

const event = "CreateContainer";
test.each<[what: string, behaviour: Behaviour, code: string]>([
  ["hangs", { hang: [event] }, "UNAVAILABLE"],
  ["ends", { exit: [event] }, "UNAVAILABLE"],
  [
    "answers an invalid adjustment",
    { adjust: { mounts: [{ source: "/x" }] } },
    "FAILED_PRECONDITION",
  ],
])("a required plugin that %s fails the creation", async (_, behaviour, code) => {
  const child = await plugins.start("10-guard", "v0125", behaviour);
  const config = daemon.hostPodConfig();
  const id = await daemon.runPod(config);
  const limit = { "plugin-request-timeout": behaviour.hang ? "1s" : "10s" };
  const error = await daemon.configured(limit, () => failure(daemon.create(id, config, ["true"])));
  expect(error).toMatchObject({ code });
  expect(error.message).toContain("NRI plugin 10-guard failed CreateContainer");
  await plugins.end(child);
  const { containers } = await daemon.client.ListContainers({});
  expect(containers).toEqual([]);
  await daemon.client.StopPodSandbox({ pod_sandbox_id: id }); // stopping a pod needs no plugin
  await daemon.removePod(id);
});

test("a required plugin that answers garbage fails the creation", async () => {
  using guard = new RawPlugin(plugins.socket, { [event]: () => Uint8Array.of(0xff, 0xff) });
  await guard.register("10", "guard");
  await until("it is there", async () => (await daemon.client.NriPlugins({})).plugins.length === 1);
  const config = daemon.hostPodConfig();
  const id = await daemon.runPod(config);
  const error = await failure(daemon.create(id, config, ["true"]));
  expect(error.code).toBe("UNAVAILABLE");
  expect(error.message).toContain("10-guard failed CreateContainer: cannot decode the answer");
  await daemon.removePod(id);
});

test("a required plugin that is not admitted counts as missing", async () => {
  const Configure = () => api.ConfigureResponse.encode({ events: 1 << 20 }).finish();
  using guard = new RawPlugin(plugins.socket, { Configure });
  await guard.register("10", "guard");
  await guard.ended;
  const error = await failure(daemon.runPod(daemon.hostPodConfig()));
  expect(error.code).toBe("UNAVAILABLE");
  expect(error.message).toContain("needs NRI plugin guard");
});
