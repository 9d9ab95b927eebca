// Plugins without which nothing is made.
import { afterAll, beforeAll, expect, test as anyTest } from "bun:test";
import { failure } from "../expect.ts";
import { type Daemon, startDaemon } from "../harness.ts";
import { hasGo, Plugins } from "./plugins.ts";

const test = anyTest.skipIf(!hasGo);
const plugins = new Plugins();
let daemon: Daemon;

beforeAll(async () => {
  if (!hasGo) return;
  const keys = { "nri-required-plugins": ["guard"], "plugin-request-timeout": "1s" };
  daemon = await startDaemon({ config: plugins.config(keys) });
}, 180_000);
afterAll(async () => {
  await daemon?.[Symbol.asyncDispose]();
  plugins[Symbol.dispose]();
});

test("without it creations fail and say what is missing; with it they work", async () => {
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

test("the socket of another program is not taken", async () => {
  const other = startDaemon({ config: plugins.config(), network: false, image: false });
  const why = await other.then(
    () => "it has started",
    (error: Error) => error.message,
  );
  expect(why).toMatch(/another program answers on .*nri-socket-path/);
});

test("one that hangs fails the creation", async () => {
  const child = await plugins.start("10-guard", "v0125", { hang: ["CreateContainer"] });
  const config = daemon.hostPodConfig();
  const id = await daemon.runPod(config);
  const error = await failure(daemon.create(id, config, ["true"]));
  expect(error).toMatchObject({ code: "UNAVAILABLE" });
  expect(error.message).toContain("NRI plugin 10-guard failed CreateContainer");
  await plugins.end(child);
  await daemon.removePod(id);
});
