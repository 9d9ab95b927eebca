// Tests namespace options of pods and containers: every mode, its default, and what is refused.
import { describe, expect, test } from "bun:test";
import { runtime } from "../../../src/proto/messages.js";
import type { NamespaceOption } from "../../../src/proto/types.ts";
import {
  checkPodNamespaces,
  containerPidMode,
  namespaceOptions,
} from "../../../src/spec/namespace_options.ts";
import { codeAndMessage } from "../../spec/inputs.ts";

const { POD, CONTAINER, NODE, TARGET } = runtime.v1.NamespaceMode;
const ids = [{ container_id: 0, host_id: 100_000, length: 65_536 }];
const mapped = [{ containerID: 0, hostID: 100_000, size: 65_536 }];
const ownUsers = { mode: POD, uids: ids, gids: ids };

const parsed = (namespace_options: NamespaceOption | null | undefined) =>
  namespaceOptions({ linux: { security_context: { namespace_options } } });

describe("namespaceOptions()", () => {
  const defaults = { network: "pod", ipc: "pod", targetId: "", user: undefined };

  test("has the enum's defaults for a config without options, as for empty ones", () => {
    for (const config of [{}, { linux: null }, { linux: { security_context: null } }]) {
      expect(namespaceOptions(config)).toMatchObject({ ...defaults, pid: "pod", isGiven: false });
    }
    expect(parsed(null)).toMatchObject({ pid: "pod", isGiven: false });
    const empty = { ...defaults, pid: "pod" as const, isGiven: true, hasUserOptions: false };
    expect(parsed({})).toMatchObject(empty);
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

describe("containerPidMode()", () => {
  const config = (options: NamespaceOption | undefined) =>
    options === undefined ? {} : { linux: { security_context: { namespace_options: options } } };
  /** A pod of mode POD shares its namespace, unless an earlier build has made it without options. */
  test.each<[NamespaceOption | undefined, boolean, NamespaceOption | undefined, string]>([
    [undefined, true, undefined, "pod"],
    [undefined, true, {}, "pod"],
    [undefined, true, { pid: CONTAINER }, "container"],
    [undefined, true, { pid: NODE }, "node"],
    [{}, true, undefined, "pod"],
    [{ pid: POD }, true, { network: NODE }, "pod"],
    [{ pid: CONTAINER }, false, undefined, "container"],
    [{ pid: CONTAINER }, false, { pid: CONTAINER }, "container"],
    [{ pid: CONTAINER }, false, { pid: TARGET, target_id: "c1" }, "target"],
    [{ pid: CONTAINER }, false, {}, "FAILED_PRECONDITION"],
    [{ pid: NODE }, false, undefined, "node"],
    [{ pid: NODE }, false, {}, "node"],
    [{ pid: NODE }, false, { pid: CONTAINER }, "container"],
    [undefined, false, undefined, "container"],
    [undefined, false, { pid: CONTAINER }, "container"],
    [undefined, false, {}, "FAILED_PRECONDITION"],
  ])("in a pod of %j (with a shared namespace: %p), a container of %j: %s", (...row) => {
    const [ofPod, hasShared, own, expected] = row;
    const decide = () => containerPidMode(config(own), { config: config(ofPod), hasShared });
    if (expected === "FAILED_PRECONDITION") expect(codeAndMessage(decide)).toStartWith(expected);
    else expect(decide() as string).toBe(expected);
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
