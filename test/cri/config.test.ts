// Tests keys of daemon.json by their effects on containers and clients.
import { expect, test } from "bun:test";
import { executable, startDaemon } from "../harness.ts";

test("limits, umask and further handler names of daemon.json reach the containers", async () => {
  await using daemon = await startDaemon({
    config: {
      "default-ulimits": {
        nofile: { Name: "nofile", Hard: 4096, Soft: 1234 },
        core: { Name: "core", Hard: -1, Soft: 0 },
      },
      "native.umask": "secure",
      "cri-runtimes": { other: "runc" },
    },
    network: false,
  });
  const pod = daemon.hostPodConfig();
  const id = await daemon.runPod(pod, "other");
  const script = "ulimit -Sn; ulimit -Hn; ulimit -Sc; ulimit -Hc; umask";
  const { id: container_id, text } = await daemon.output(id, pod, script);
  expect(text.trim().split("\n")).toEqual(["1234", "4096", "0", "unlimited", "0027"]);
  // A Go program cannot read 18446744073709552000 into its runtime-spec.
  const { info } = await daemon.client.ContainerStatus({ container_id, verbose: true });
  expect(info["info"]).toContain('"hard":18446744073709551615');
});

test("a verbose Status and info show limits of daemon.json, up to 64 bits", async () => {
  const config = { "default-ulimits": { core: { Name: "core", Hard: -1, Soft: 0 } } };
  await using daemon = await startDaemon({ config, network: false, image: false });
  const { info } = await daemon.client.Status({ verbose: true });
  expect(info["config"]).toContain('"hard":18446744073709551615');
  const argv = [executable, "info", "--host", `unix://${daemon.socket}`];
  const { exitCode, stdout } = Bun.spawnSync(argv);
  expect({ exitCode, text: stdout.toString() }).toEqual({
    exitCode: 0,
    text: expect.stringContaining("18446744073709551615"),
  });
});

// iSulad's own file, but for the folders, which are the harness's.
test("a daemon with iSulad's stock keys serves, and its log has one warning for each idle key", async () => {
  await using daemon = await startDaemon({
    config: {
      group: "no-such-group",
      "log-opts": { "log-file-mode": "0600", "log-path": "/var/lib/isulad" },
      "log-driver": "stdout",
      "container-log": { driver: "json-file" },
      "hook-spec": "/etc/default/isulad/hooks/default.json",
      "start-timeout": "2m",
      "storage-driver": "overlay2",
      "storage-opts": ["overlay2.override_kernel_check=true"],
      "pod-sandbox-image": "",
      "native.umask": "normal",
      "network-plugin": "",
      "cni-bin-dir": "",
      "image-layer-check": false,
      "use-decrypted-key": true,
      "insecure-skip-verify-enforce": false,
      "cri-runtimes": { kata: "io.containerd.kata.v2" },
    },
    network: false,
    image: false,
  });
  expect((await daemon.client.Version({})).runtime_name).toMatch(/isulad/);
  const warnings = daemon.log.split("\n").filter((line) => line.includes(" WARN "));
  for (const about of [
    '"log-opts',
    '"container-log',
    '"hook-spec',
    '"use-decrypted-key',
    "no-such-group",
    "kata",
  ]) {
    const told = warnings.filter((line) => line.replaceAll("\\", "").includes(about));
    expect([about, told.length]).toEqual([about, 1]);
  }
});
