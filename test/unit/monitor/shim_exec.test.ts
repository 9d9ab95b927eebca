// Tests the mark that execs of a shim get, by which their descendants are found.
import { expect, test } from "bun:test";
import { markedProcess } from "../../../src/monitor/shim_exec.ts";

const entry = '{"type":"RLIMIT_RTTIME","soft":4503599627370497,"hard":18446744073709551615}';
const mark = 2 ** 52 + 1;

test.each([
  ["no limits", '{"args":["true"]}', `{"rlimits":[${entry}],"args":["true"]}`],
  ["an empty list", '{"rlimits":[]}', `{"rlimits":[${entry}]}`],
  ["other limits", '{"a":1,"rlimits":[{"type":"X"}]}', `{"a":1,"rlimits":[${entry},{"type":"X"}]}`],
  [
    "an argument that looks like limits",
    '{"args":["\\"rlimits\\":[$&"]}',
    `{"rlimits":[${entry}],"args":["\\"rlimits\\":[$&"]}`,
  ],
  ["a limit of its own", '{"rlimits":[{"type":"RLIMIT_RTTIME"}]}', undefined],
])("markedProcess() adds the mark to a process with %s", (_, process, marked) => {
  expect(markedProcess(process, mark)).toBe(marked ?? process);
  expect(markedProcess(process, undefined)).toBe(process);
});
