// Tests that UpdateRuntimeConfig writes the kubelet's pod CIDR into a CNI list if daemon.json names a
// template.
import { expect, test } from "bun:test";
import { existsSync, readdirSync, rmSync, statSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { failure } from "../expect.ts";
import { type Daemon, startDaemon } from "../harness.ts";

const tell = (daemon: Daemon, pod_cidr: string) =>
  daemon.client.UpdateRuntimeConfig({ runtime_config: { network_config: { pod_cidr } } });

async function networkReady(daemon: Daemon): Promise<boolean> {
  const { status } = await daemon.client.Status({});
  return status!.conditions!.find(({ type }) => type === "NetworkReady")!.status!;
}

test("without a template it is accepted, and nothing is written", async () => {
  await using daemon = await startDaemon({ network: false, image: false });
  await tell(daemon, "10.1.0.0/24");
  expect(readdirSync(daemon.cniDir)).toEqual([]);
});

test("with a template: pods get addresses of the CIDR; other lists are never changed", async () => {
  await using daemon = await startDaemon({ network: false });
  const template = join(daemon.dir, "template.conflist");
  const list = join(daemon.cniDir, "10-isulad-net.conflist");
  daemon.writeConfig({ "cni-conf-template": template });
  await daemon.restart();
  expect((await failure(tell(daemon, "10.1.0.0/24"))).message).toContain(template);
  const ipam = `{"type": "host-local", "dataDir": "${daemon.dir}/ipam",
    "ranges": [{{range $i, $range := .PodCIDRRanges}}{{if $i}}, {{end}}[{"subnet": "{{$range}}"}]{{end}}]}`;
  const plugin = `{"type": "bridge", "bridge": "${daemon.bridge}", "isGateway": true, "ipam": ${ipam}}`;
  const write = (plugins: string) =>
    writeFileSync(
      template,
      `{"cniVersion": "1.0.0", "name": "${daemon.token}", "plugins": ${plugins}}`,
    );
  write("[]");
  const error = await failure(tell(daemon, "10.1.0.0/24"));
  expect(error.code).toBe("FAILED_PRECONDITION");
  expect(error.message).toContain("plugins");
  expect(existsSync(list)).toBe(false);
  write(`[${plugin}]`);
  await tell(daemon, "");
  expect(await networkReady(daemon)).toBe(false);

  await tell(daemon, ` ${daemon.subnet}.0/25, fd00:5::/64`);
  expect(await networkReady(daemon)).toBe(true);
  expect(statSync(list).mode & 0o777).toBe(0o644);
  const podId = await daemon.runPod(daemon.podConfig());
  const { status } = await daemon.client.PodSandboxStatus({ pod_sandbox_id: podId });
  expect(status!.network!.ip).toStartWith(`${daemon.subnet}.`);
  await daemon.removePod(podId);

  Bun.spawnSync(["ip", "link", "del", daemon.bridge]); // it keeps its address otherwise
  await tell(daemon, `${daemon.subnet}.128/25`); // ours is written anew
  const second = await daemon.runPod(daemon.podConfig());
  const other = await daemon.client.PodSandboxStatus({ pod_sandbox_id: second });
  expect(Number(other.status!.network!.ip!.split(".").at(-1))).toBeGreaterThan(128);
  await daemon.removePod(second);

  rmSync(list);
  daemon.writeNetwork("20-own.conflist");
  await tell(daemon, "10.1.0.0/24");
  expect(readdirSync(daemon.cniDir)).toEqual(["20-own.conflist"]);
});
