// Tests that any user in a pod may use low ports and pings with enable-unprivileged-ports and
// enable-unprivileged-icmp.
import { expect, test } from "bun:test";
import { toLong } from "../../src/base/int64.ts";
import { startDaemon, type Daemon } from "../harness.ts";

/** As user 1000 without capabilities: what the kernel says of ports and pings, and does of ports. */
async function asUser(daemon: Daemon, sysctls: Record<string, string>) {
  const pod = daemon.podConfig({ linux: { sysctls } });
  const podId = await daemon.runPod(pod);
  const security_context = {
    run_as_user: { value: toLong(1000) },
    capabilities: { drop_capabilities: ["ALL"] },
  };
  const script = `cat /proc/sys/net/ipv4/ip_unprivileged_port_start /proc/sys/net/ipv4/ping_group_range
    nc -l -p 80 > /dev/null 2>&1 & listens() { cat /proc/net/tcp /proc/net/tcp6 2> /dev/null | grep -q ':0050 0*:0000 0A '; }
    until listens || ! kill -0 $! 2> /dev/null; do sleep 0.1; done; kill $! 2> /dev/null; echo "listen $?"`;
  const { text } = await daemon.output(podId, pod, script, { linux: { security_context } });
  await daemon.removePod(podId);
  return text.replaceAll(/\s+/g, " ").trim();
}

test("on by default; a pod's own sysctl wins", async () => {
  await using daemon = await startDaemon();
  expect(await asUser(daemon, {})).toBe("0 0 2147483647 listen 0");
  const own = { "net/ipv4/ip_unprivileged_port_start": "81" };
  expect(await asUser(daemon, own)).toBe("81 0 2147483647 listen 1");
});

test("off: the kernel's own, neither", async () => {
  const config = { "enable-unprivileged-ports": false, "enable-unprivileged-icmp": false };
  await using daemon = await startDaemon({ config });
  expect(await asUser(daemon, {})).toBe("1024 1 0 listen 1");
});
