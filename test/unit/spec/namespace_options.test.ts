// Tests namespace options of pods and containers: every mode, its default, and what is refused.
import { describe, expect, test } from "bun:test";
import { runtime } from "../../../src/proto/messages.js";
import type { NamespaceOption } from "../../../src/proto/types.ts";
import { checkPodNamespaces, namespaceOptions } from "../../../src/spec/namespace_options.ts";
import { codeAndMessage } from "../../spec/inputs.ts";

const { POD, CONTAINER, NODE, TARGET } = runtime.v1.NamespaceMode;
const ids = [{ container_id: 0, host_id: 100_000, length: 65_536 }];
const mapped = [{ containerID: 0, hostID: 100_000, size: 65_536 }];
const ownUsers = { mode: POD, uids: ids, gids: ids };

const parsed = (namespace_options: NamespaceOption | null | undefined) =>
  namespaceOptions({ linux: { security_context: { namespace_options } } });

describe("namespaceOptions()", () => {
  const defaults = { network: "pod", ipc: "pod", targetId: "", user: undefined };

  test("has defaults for a config without options, and pid mode POD for empty ones", () => {
    for (const config of [{}, { linux: null }, { linux: { security_context: null } }]) {
      expect(namespaceOptions(config)).toMatchObject({ ...defaults, pid: undefined });
    }
    expect(parsed(null).pid).toBeUndefined();
    expect(parsed({})).toMatchObject({ ...defaults, pid: "pod", hasUserOptions: false });
  });

  test.each<[NamespaceOption, object]>([
    [{ network: NODE }, { network: "node", ipc: "pod" }],
    [{ ipc: NODE }, { network: "pod", ipc: "node" }],
    [
      { network: POD, ipc: POD },
      { network: "pod", ipc: "pod" },
    ],
    [{ pid: CONTAINER }, { pid: "container", targetId: "" }],
    [{ pid: NODE }, { pid: "node" }],
    [
      { pid: TARGET, target_id: "c1" },
      { pid: "target", targetId: "c1" },
    ],
    [{ pid: TARGET }, { pid: "target", targetId: "" }],
    [
      { pid: CONTAINER, target_id: "c1" },
      { pid: "container", targetId: "" },
    ],
    [{ userns_options: { mode: NODE } }, { user: undefined, hasUserOptions: true }],
    [{ userns_options: ownUsers }, { user: { uidMappings: mapped, gidMappings: mapped } }],
  ])("parses %j", (options, expected) => {
    expect(parsed(options)).toMatchObject(expected);
  });

  test("refuses an unknown pid mode, and a user namespace without mappings", () => {
    expect(codeAndMessage(() => parsed({ pid: 9 as never }))).toContain("INVALID_ARGUMENT");
    expect(codeAndMessage(() => parsed({ userns_options: {} }))).toContain(
      "userns_options: uids has 0 mappings",
    );
  });
});

describe("checkPodNamespaces()", () => {
  test.each<[string, NamespaceOption]>([
    ["pid", { userns_options: ownUsers, pid: NODE }],
    ["ipc", { userns_options: ownUsers, ipc: NODE }],
  ])("refuses a user namespace of a pod that shares the node's %s namespace", (kind, options) => {
    const message = codeAndMessage(() => checkPodNamespaces(parsed(options)));
    expect(message).toContain(`INVALID_ARGUMENT: namespace_options.userns_options`);
    expect(message).toContain(`namespace_options.${kind} is NODE`);
  });

  test("accepts the node's namespaces without a user namespace, and its network with one", () => {
    checkPodNamespaces(parsed({ pid: NODE, ipc: NODE }));
    checkPodNamespaces(parsed({ userns_options: ownUsers, network: NODE }));
  });
});
