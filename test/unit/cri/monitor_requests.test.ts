// Tests who owns the streams of a container: the root of its user namespace, else whom the runtime names.
import { expect, test } from "bun:test";
import type { Context } from "../../../src/cri/context.ts";
import { startRequest } from "../../../src/cri/monitor_requests.ts";
import type { RuntimeCommand } from "../../../src/node/oci_runtime.ts";
import { containerRecord, sandboxRecord } from "../fakes.ts";

const context = {
  config: { state: "/state" },
  containers: { folderOf: () => "/bundle" },
  sandboxes: { find: () => undefined },
} as unknown as Context;

function ownerOf(runtime: Partial<RuntimeCommand>, withUserns = false) {
  const mappings = [{ container_id: 0, host_id: 70_000, length: 65_536 }];
  const userns_options = { uids: mappings, gids: mappings };
  const linux = { security_context: { namespace_options: { userns_options } } };
  const user = { path: "/userns", inode: "1" };
  const sandbox = withUserns
    ? sandboxRecord({ config: { linux }, namespaces: { user } })
    : sandboxRecord();
  const command = { path: "runc", args: [], root: "/r", systemdCgroup: false, ...runtime };
  return startRequest(context, containerRecord(), { sandbox, runtime: command }).owner;
}

test("startRequest() has the owner of the streams", () => {
  const streamOwner = { uid: 5, gid: 6 };
  expect(ownerOf({})).toBeUndefined();
  expect(ownerOf({ streamOwner })).toEqual(streamOwner);
  expect(ownerOf({ streamOwner }, true)).toEqual({ uid: 70_000, gid: 70_000 });
});
