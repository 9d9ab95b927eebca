// Tests that plugins get one Stop and one Remove for each pod and container, however it ends.
import { afterEach, beforeEach, expect, test as anyTest } from "bun:test";
import { chmodSync, mkdirSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { failure, until } from "../expect.ts";
import { type Daemon, startDaemon } from "../harness.ts";
import { hasGo, Plugins } from "./plugins.ts";

const test = anyTest.skipIf(!hasGo);
const id = "10-launched";
let plugins: Plugins;
let daemon: Daemon;

beforeEach(async () => {
  if (!hasGo) return;
  plugins = new Plugins();
  plugins.install(id, "v0125");
  daemon = await startDaemon({ config: plugins.config(), flags: ["--allow-failpoints"] });
}, 180_000);
afterEach(async () => {
  await daemon?.[Symbol.asyncDispose]();
  plugins?.[Symbol.dispose]();
});

const heardOfPod = (podId: string) =>
  plugins
    .lines(id)
    .filter(({ pod, container }) => pod?.id === podId && container === undefined)
    .map(({ event }) => event);

test("plugins get the Stop that the sweep finishes", async () => {
  const podId = await daemon.runPod(daemon.podConfig());
  await daemon.restart("SIGKILL", "before:cni-del=kill");
  await failure(daemon.client.StopPodSandbox({ pod_sandbox_id: podId }));
  const before = plugins.lines(id).length;
  await daemon.start();
  await until("the network is gone", async () => {
    const { status } = await daemon.client.PodSandboxStatus({ pod_sandbox_id: podId });
    return status!.network!.ip === "";
  });
  const now = plugins.lines(id).slice(before);
  expect(now.find(({ event }) => event === "Synchronize")).toMatchObject({ pods: 1 });
  await daemon.removePod(podId);
  const heard = plugins
    .lines(id)
    .slice(before)
    .filter(({ pod }) => pod?.id === podId);
  expect(heard.map(({ event }) => event)).toEqual(["StopPodSandbox", "RemovePodSandbox"]);
});

test("a RunPodSandbox that fails late and cannot be rolled back gives one Stop and one Remove", async () => {
  const broken = join(daemon.dir, "broken");
  const folder = join(daemon.dir, "plugins");
  mkdirSync(folder);
  const script = `#!/bin/sh
cat > /dev/null
[ $CNI_COMMAND = ADD ] && echo '{"cniVersion":"1.0.0","ips":[{"address":"10.255.255.7/32"}]}'
[ $CNI_COMMAND != DEL ] || [ ! -e ${broken} ] || exit 1
`;
  writeFileSync(join(folder, "fragile"), script);
  chmodSync(join(folder, "fragile"), 0o755);
  const list = { cniVersion: "1.0.0", name: daemon.token, plugins: [{ type: "fragile" }] };
  writeFileSync(join(daemon.cniDir, "10-test.conflist"), JSON.stringify(list));
  daemon.writeConfig({ "cni-bin-dir": folder });
  await daemon.restart("SIGKILL", "after:sandbox-ready=error");
  writeFileSync(broken, "");
  await failure(daemon.runPod(daemon.podConfig()));
  const { items } = await daemon.client.ListPodSandbox({});
  expect(items.map(({ state }) => state)).toEqual([1]);
  const podId = items[0]!.id!;
  expect(heardOfPod(podId)).toEqual(["RunPodSandbox", "StopPodSandbox"]);
  await failure(daemon.client.StopPodSandbox({ pod_sandbox_id: podId }));
  rmSync(broken);
  await daemon.removePod(podId);
  expect(heardOfPod(podId)).toEqual(["RunPodSandbox", "StopPodSandbox", "RemovePodSandbox"]);
});

test("a container that was never started is stopped before it is removed", async () => {
  const pod = daemon.hostPodConfig();
  const podId = await daemon.runPod(pod);
  const metadata = { name: "idle" };
  const container_id = await daemon.create(podId, pod, "true", { metadata });
  await daemon.client.RemoveContainer({ container_id });
  const life = ["CreateContainer", "PostCreateContainer", "StopContainer", "RemoveContainer"];
  expect(plugins.heardOf(id, "idle")).toEqual(life);
  // The same for a container that the runtime cannot create: it does not come to StartContainer, as with containerd.
  await daemon.run(podId, pod, ["/nothing"], { metadata: { name: "broken" } }).catch(() => {});
  await daemon.removePod(podId);
  expect(plugins.heardOf(id, "broken")).toEqual(life);
});
