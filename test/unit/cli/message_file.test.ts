// Tests configurations of pods and containers in JSON and YAML files.
import { afterAll, expect, test } from "bun:test";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { readMessage } from "../../../src/cli/message_file.ts";
import { runtime } from "../../../src/proto/messages.js";

const dir = mkdtempSync(join(tmpdir(), "isulad-message-"));
afterAll(() => rmSync(dir, { recursive: true }));

async function read(text: string) {
  const file = join(dir, "pod");
  writeFileSync(file, text);
  const message = await readMessage(file, runtime.v1.PodSandboxConfig);
  return runtime.v1.PodSandboxConfig.toObject(message, { longs: String, enums: String });
}

test("JSON and YAML with the proto's names make the same message", async () => {
  const expected = {
    metadata: { name: "web", namespace: "default", attempt: 1 },
    labels: { "a-b": "c" },
    port_mappings: [{ protocol: "UDP", host_port: 53 }],
    linux: { resources: { memory_limit_in_bytes: "9007199254740991" } },
  };
  const yaml = `
metadata: {name: web, namespace: default, attempt: 1}
labels: {a-b: c}
port_mappings: [{protocol: UDP, host_port: 53}]
linux: {resources: {memory_limit_in_bytes: 9007199254740991}}
`;
  expect(await read(yaml)).toEqual(expected);
  expect(await read(JSON.stringify(expected))).toEqual(expected);
  expect(await read('{"port_mappings": [{"protocol": 1}]}')).toEqual({
    port_mappings: [{ protocol: "UDP" }],
  });
});

test("values of a container's environment are text, as in crictl's files", async () => {
  const file = join(dir, "container");
  const values = ["/usr/bin:/bin", "disk", "ä€", ""];
  writeFileSync(file, JSON.stringify({ envs: values.map((value) => ({ key: "NAME", value })) }));
  const { envs } = await readMessage(file, runtime.v1.ContainerConfig);
  expect(envs.map(({ value }) => Buffer.from(value ?? []).toString())).toEqual(values);
  writeFileSync(file, "envs: [{key: A}, {key: B, value: null}, {key: PORT, value: 8080}]");
  expect(readMessage(file, runtime.v1.ContainerConfig)).rejects.toMatchObject({
    code: "INVALID_ARGUMENT",
    message: `${file} envs[2].value: 8080 is not text; put it in quotes`,
  });
});

test.each([
  ["{metadata: {naem: web}}", 'has no field "metadata.naem"'],
  ["{logDirectory: /x}", 'has no field "logDirectory"'],
  ["{port_mappings: [{protocol: FTP}]}", "is no value of this field"],
  ["{metadata: web}", "object expected"],
  ["[1]", "must be a map of fields"],
  ["", "must be a map of fields"],
  ["{a: [}", "is neither JSON nor YAML"],
])("%s is refused: %s", async (text, why) => {
  expect(read(text)).rejects.toMatchObject({
    code: "INVALID_ARGUMENT",
    message: expect.stringContaining(why) as string,
  });
});
