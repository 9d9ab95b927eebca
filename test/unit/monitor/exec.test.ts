// Tests what an exec answers whose container ends while the runtime starts it.
import { expect, test } from "bun:test";
import { spawnSync } from "node:child_process";
import process from "node:process";
import { CriError } from "../../../src/base/errors.ts";
import { Execs, type ExecStarter } from "../../../src/monitor/exec.ts";
import type { LogWorkers } from "../../../src/monitor/log_workers.ts";
import type { RunRecord } from "../../../src/monitor/record_schemas.ts";
import { failure } from "../../expect.ts";

/** Starts an exec in a container whose first process is pid, by a runtime that fails. */
async function errorOf(pid: number, error: CriError): Promise<CriError> {
  const starter: ExecStarter<undefined> = {
    isCopied: false,
    openCaptured: () => {
      throw new Error("unused");
    },
    openCallers: () => ({ streams: undefined, [Symbol.dispose]: () => {} }),
    start: () => Promise.reject(error),
  };
  const execs = new Execs({} as LogWorkers, () => Promise.resolve(starter as ExecStarter<unknown>));
  const streams = { stdin: "", stdout: "", stderr: "", console: "" };
  const request = { id: "c1", key: "k", process: "{}", ...streams };
  return failure(execs.start({ id: "c1", pid } as RunRecord, request));
}

const ofRuntime = new CriError("UNKNOWN", "runc exec: cannot exec in a stopped container");
const ended = spawnSync("true").pid;

test("an exec that the container's end overtakes is FAILED_PRECONDITION, with the runtime's error as its cause", async () => {
  const { code, message, cause } = await errorOf(ended, ofRuntime);
  expect(code).toBe("FAILED_PRECONDITION");
  expect(message).toContain("container c1 ended while the exec was started");
  expect(cause).toBe(ofRuntime);
});

test("the runtime's error stands while the container runs", async () => {
  expect(await errorOf(process.pid, ofRuntime)).toBe(ofRuntime);
});

test("so does a deadline that the container's end follows", async () => {
  const late = new CriError("DEADLINE_EXCEEDED", "runc exec: killed");
  expect(await errorOf(ended, late)).toBe(late);
});
