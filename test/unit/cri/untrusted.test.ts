// Tests which handler pods with the annotation of untrusted workloads get.
import { expect, test } from "bun:test";
import type { Context, Handler } from "../../../src/cri/context.ts";
import { podHandlerName } from "../../../src/cri/untrusted.ts";
import { runtime } from "../../../src/proto/messages.js";
import { codeAndMessage } from "../../spec/inputs.ts";

const { NODE } = runtime.v1.NamespaceMode;
const annotation = "io.kubernetes.cri.untrusted-workload";

const contextWith = (...names: string[]): Pick<Context, "handlers"> => ({
  handlers: new Map(names.map((name) => [name, {} as Handler])),
});
const configured = contextWith("", "runc", "untrusted");
const marked = (value = "true", options?: object) => ({
  annotations: { [annotation]: value },
  linux: { security_context: { namespace_options: options } },
});

test.each([
  ["", "untrusted"],
  ["untrusted", "untrusted"],
])("an untrusted pod with handler %p runs on %p", (requested, expected) => {
  expect(podHandlerName(configured, marked(), requested)).toBe(expected);
});

test.each(["false", "True", ""])("the annotation's value %p changes nothing", (value) => {
  expect(podHandlerName(configured, marked(value, { network: NODE }), "runc")).toBe("runc");
  expect(podHandlerName(configured, marked(value), "")).toBe("");
});

test("a pod without the annotation keeps its handler", () => {
  expect(podHandlerName(contextWith(""), {}, "")).toBe("");
  expect(podHandlerName(configured, {}, "runc")).toBe("runc");
});

test("an untrusted pod with another handler is refused", () => {
  expect(codeAndMessage(() => podHandlerName(configured, marked(), "runc"))).toBe(
    `INVALID_ARGUMENT: runtime_handler: a pod with the annotation ${annotation}: "true" runs on the handler "untrusted", not on "runc": leave out its RuntimeClass, or the annotation`,
  );
});

test.each([
  [{ network: NODE }, "network"],
  [{ pid: NODE }, "pid"],
  [{ ipc: NODE }, "ipc"],
  [{ network: NODE, pid: NODE, ipc: NODE }, "network, pid, ipc"],
])("an untrusted pod with the node's namespaces %j is refused", (options, names) => {
  const refused = codeAndMessage(() => podHandlerName(configured, marked("true", options), ""));
  expect(refused).toStartWith("INVALID_ARGUMENT: namespace_options: ");
  expect(refused).toEndWith(`(${names})`);
});

test("without a handler for them untrusted pods are refused with the cure", () => {
  const none = contextWith("", "runc");
  for (const requested of ["", "untrusted"]) {
    expect(codeAndMessage(() => podHandlerName(none, marked(), requested))).toBe(
      `FAILED_PRECONDITION: a pod with the annotation ${annotation}: "true" needs a runtime handler "untrusted": configure it in daemon.json, for example as gVisor by "cri-runtimes": {"untrusted": "io.containerd.runsc.v1"}`,
    );
  }
});
