// Tests the sysctls of a pod: those that it requests, and those that the daemon adds.
import { expect, test } from "bun:test";
import { runtime } from "../../../src/proto/messages.js";
import { podSysctls } from "../../../src/spec/sysctls.ts";

const { NamespaceMode } = runtime.v1;
const both = { unprivilegedPorts: true, unprivilegedIcmp: true };
const ports = { "net.ipv4.ip_unprivileged_port_start": "0" };
const pings = { "net.ipv4.ping_group_range": "0 2147483647" };

test("podSysctls() allows low ports and pings in pods with their own network", () => {
  expect(podSysctls({}, both)).toEqual({ ...ports, ...pings });
  expect(podSysctls({}, { unprivilegedPorts: false, unprivilegedIcmp: true })).toEqual(pings);
  const namespace_options = { network: NamespaceMode.NODE };
  expect(podSysctls({ linux: { security_context: { namespace_options } } }, both)).toEqual({});
});

test("podSysctls() keeps the pod's sysctls, with dots or slashes", () => {
  const sysctls = { "net/ipv4/ip_unprivileged_port_start": "80", "kernel.shmmni": "5" };
  expect(podSysctls({ linux: { sysctls } }, both)).toEqual({ ...pings, ...sysctls });
});

test("podSysctls() leaves ping_group_range alone in a user namespace", () => {
  const ids = [{ container_id: 0, host_id: 100_000, length: 65_536 }];
  const userns_options = { mode: NamespaceMode.POD, uids: ids, gids: ids };
  const namespace_options = { userns_options };
  expect(podSysctls({ linux: { security_context: { namespace_options } } }, both)).toEqual(ports);
});
