// Tests the names of pods, containers and commands in the log.
import { expect, test } from "bun:test";
import { commandFields, containerFields, sandboxFields } from "../../../src/cri/log_subject.ts";
import { containerRecord, recordStore, sandboxRecord } from "../fakes.ts";

const config = { metadata: { name: "web", namespace: "shop", uid: "u", attempt: 0 } };

test("a container has its pod's namespace and name, its own name, and its id", () => {
  const sandboxes = recordStore([sandboxRecord({ id: "p", config })]);
  const metadata = { name: "app", attempt: 1 };
  const container = containerRecord({ id: "c", sandboxId: "p", config: { metadata } });
  expect(containerFields({ sandboxes }, container)).toEqual({
    pod: "shop/web",
    container: "app",
    id: "c",
  });
});

test("a container whose pod is gone, or without a name, has its id", () => {
  const sandboxes = recordStore([]);
  const container = containerRecord({ id: "c", config: {} });
  expect(containerFields({ sandboxes }, container)).toEqual({ id: "c" } as never);
});

test("a sandbox has namespace, name and id", () => {
  const sandbox = sandboxRecord({ id: "p", config });
  expect(sandboxFields(sandbox)).toEqual({ pod: "shop/web", sandbox: "p" });
});

test("a command is its program and the number of its arguments, never their text", () => {
  expect(commandFields(["mysql", "-psecret", "db"])).toEqual({ program: "mysql", arguments: 2 });
  expect(commandFields([])).toEqual({ arguments: 0 } as never);
  expect(commandFields(undefined)).toEqual({ arguments: 0 } as never);
});
