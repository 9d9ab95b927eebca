// Tests splitSysctls(): the namespace of each sysctl, and those that a pod may not set.
import { expect, test } from "bun:test";
import { splitSysctls } from "../../../src/node/namespace_sysctls.ts";

const all = ["net", "ipc", "uts"];

test.each<[string, "now" | "uts" | "later", string]>([
  ["net.ipv4.ip_forward", "now", "/proc/sys/net/ipv4/ip_forward"],
  ["net/ipv4/ip_forward", "now", "/proc/sys/net/ipv4/ip_forward"],
  ["kernel.shmmax", "now", "/proc/sys/kernel/shmmax"],
  ["kernel.shm_rmid_forced", "now", "/proc/sys/kernel/shm_rmid_forced"],
  ["fs.mqueue.msg_max", "now", "/proc/sys/fs/mqueue/msg_max"],
  ["kernel.domainname", "uts", "/proc/sys/kernel/domainname"],
  ["net.ipv4.conf.eth0.rp_filter", "later", "net.ipv4.conf.eth0.rp_filter"],
  ["net/ipv6/neigh/eth0.5/retrans_time", "later", "net/ipv6/neigh/eth0.5/retrans_time"],
])("splitSysctls() sorts %s into %s", (key, group, name) => {
  const expected = { now: {}, uts: {}, later: {}, [group]: { [name]: "1" } };
  expect(splitSysctls({ [key]: "1" }, all)).toEqual(expected);
});

test.each([
  ["vm.swappiness", all, "belongs to no namespace of a pod"],
  ["kernel.hostname", all, "belongs to no namespace of a pod"],
  ["net.ipv4...hostname", all, "belongs to no namespace of a pod"],
  ["net./../kernel/hostname", all, "belongs to no namespace of a pod"],
  ["net", all, "belongs to no namespace of a pod"],
  ["net.ipv4.ip_forward", ["ipc", "uts"], "shares the node's net namespace"],
  ["kernel.shmmax", ["net"], "shares the node's ipc namespace"],
  ["kernel.domainname", ["net"], "shares the node's uts namespace"],
])("splitSysctls() refuses %s for a pod that owns %p", (key, owned, message) => {
  expect(() => splitSysctls({ [key]: "1" }, owned)).toThrow(message);
});
