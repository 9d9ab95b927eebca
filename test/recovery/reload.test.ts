// Tests the reload of a running daemon's configuration by the command and by SIGHUP.
import { expect, test } from "bun:test";
import { failure, until } from "../expect.ts";
import { startDaemon } from "../harness.ts";

test("isulad-ts reload and SIGHUP apply the file; a bad file changes nothing", async () => {
  await using daemon = await startDaemon({ network: false, image: false });
  const configOf = async () => {
    const { info } = await daemon.client.Status({ verbose: true });
    return JSON.parse(info?.["config"] ?? "") as Record<string, unknown>;
  };

  daemon.writeConfig({
    "registry-mirrors": ["m.example"],
    "cri-runtimes": { more: "runc" },
    "metrics-port": 1,
  });
  expect(await daemon.client.Reload({})).toMatchObject({
    applied: ["runtimes", "registry-mirrors"],
    restart: ["metrics-port"],
  });
  expect(await configOf()).toMatchObject({ registryMirrors: ["m.example"], metricsPort: 0 });
  const { runtime_handlers } = await daemon.client.Status({});
  expect(runtime_handlers?.map(({ name }) => name)).toContain("more");

  daemon.writeConfig({ "registry-mirrors": 5 });
  const { code, message } = await failure(daemon.client.Reload({}));
  expect(code).toBe("INVALID_ARGUMENT");
  expect(message).toMatch(/the old values stay in force: .*"registry-mirrors" must be/);
  process.kill(daemon.pid, "SIGHUP");
  await until("the failure is logged", () => daemon.log.includes("SIGHUP had no effect"));
  expect(await configOf()).toMatchObject({ registryMirrors: ["m.example"] });

  daemon.writeConfig({ "log-level": "INFO" });
  process.kill(daemon.pid, "SIGHUP");
  await until("it is applied", async () => (await configOf())["logLevel"] === "info");
  expect(await configOf()).toMatchObject({ registryMirrors: [] });
});
