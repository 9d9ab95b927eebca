// Tests ExecSync and container logs.
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { existsSync, readdirSync, readFileSync, renameSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { toLong } from "../../src/base/int64.ts";
import type { PodSandboxConfig } from "../../src/proto/types.ts";
import { kernelFigure, readKernelFile, writeKernelFile } from "../../src/sys/file.ts";
import { failure, until } from "../expect.ts";
import { gate, openGate } from "../gate.ts";
import { type Daemon, startDaemon } from "../harness.ts";
import { logText } from "../log_text.ts";

let daemon: Daemon;
let pod: PodSandboxConfig;
let podId: string;
let id: string;
beforeAll(async () => {
  daemon = await startDaemon();
  pod = daemon.hostPodConfig();
  podId = await daemon.runPod(pod);
  id = await daemon.run(podId, pod, ["sleep", "600"]);
});
afterAll(() => daemon?.[Symbol.asyncDispose]());

/** The most memory that a process has had since this was last called. */
function peakKib(pid: number): number {
  const peak = kernelFigure(readKernelFile(`/proc/${pid}/status`), "VmHWM");
  writeKernelFile(`/proc/${pid}/clear_refs`, "5"); // begins again with what it has now
  return peak!;
}

describe("ExecSync", () => {
  test("returns both streams and the exit code", async () => {
    const result = await daemon.exec(id, "echo out; echo err >&2; exit 4");
    expect(result).toEqual({ exitCode: 4, stdout: "out\n", stderr: "err\n" });
  });

  test("a missing command fails with the runtime's message", async () => {
    const call = daemon.exec(id, ["/no/such/program"]);
    const said = await call.then(
      (result) => result.stderr + result.exitCode,
      (error: Error) => error.message,
    );
    expect(said).toContain("/no/such/program");
  });

  test("a timeout kills the command with its descendants and answers DEADLINE_EXCEEDED", async () => {
    const start = performance.now();
    const cmd = "sleep 51515 & setsid sleep 51516 & sleep 51517; true";
    const error = await failure(daemon.exec(id, cmd, 1));
    expect(error.code).toBe("DEADLINE_EXCEEDED");
    expect(performance.now() - start).toBeWithin(900, 60_000);
    expect((await daemon.exec(id, "ps -o args")).stdout).not.toMatch(/sleep 5151/);
  });

  test("the container keeps running after that", async () => {
    expect((await daemon.exec(id, "echo on")).stdout).toBe("on\n");
  });

  test("a timeout of a year is no limit", async () => {
    const { exitCode } = await daemon.exec(id, "sleep 0.3; exit 6", 31_536_000);
    expect(exitCode).toBe(6);
  });

  test("a negative timeout is INVALID_ARGUMENT, and so is no command", async () => {
    const { client } = daemon;
    const calls = [
      client.ExecSync({ container_id: id, cmd: ["true"], timeout: toLong(-1) }),
      client.ExecSync({ container_id: id, cmd: [] }),
    ];
    for (const call of calls) expect((await failure(call)).code).toBe("INVALID_ARGUMENT");
  });

  test("a command too long for the monitor is INVALID_ARGUMENT, and other execs are not affected", async () => {
    const monitors = daemon.monitors();
    const other = daemon.exec(id, "sleep 0.5; echo there");
    const words = Array.from({ length: 30 }, () => "\u0001".repeat(100_000));
    const error = await failure(daemon.exec(id, ["true", ...words]));
    expect(error.code).toBe("INVALID_ARGUMENT");
    expect(error.message).toMatch(/is \d{8} bytes; .* at most 4194304/);
    expect((await other).stdout).toBe("there\n");
    expect(daemon.monitors()).toEqual(monitors);
  });

  test("100 MB of output come as one answer under 16 MiB, the end of stderr included", async () => {
    const cmd = ["sh", "-c", "head -c 100000000 /dev/zero; echo done >&2; exit 3"];
    const response = await daemon.client.ExecSync({ container_id: id, cmd, timeout: toLong(60) });
    expect(response.exit_code).toBe(3);
    expect(response.stdout.length).toBeWithin((16 << 20) - 128, 16 << 20);
    expect(Buffer.from(response.stderr).toString()).toBe("done\n");
  });

  test.each([
    [16_777_000, 0],
    [0, 16_777_000],
    [16_000_000, 777_000],
  ])("output of %i and %i bytes, under 16 MiB together, is complete", async (out, err) => {
    const cmd = ["sh", "-c", `head -c ${out} /dev/zero; head -c ${err} /dev/zero >&2`];
    const response = await daemon.client.ExecSync({ container_id: id, cmd, timeout: toLong(60) });
    expect([response.stdout.length, response.stderr.length]).toEqual([out, err]);
  });

  test("six outputs of 16 MiB at once take little memory, and leave no file", async () => {
    const peaks = () => [daemon.pid, ...daemon.monitors()].map(peakKib);
    const before = peaks();
    const cmd = ["sh", "-c", "head -c 16777000 /dev/zero"];
    const request = { container_id: id, cmd, timeout: toLong(60) };
    const calls = Array.from({ length: 6 }, () => daemon.client.ExecSync(request));
    const outputs = await Promise.all(calls);
    const grown = peaks().reduce((sum, kib, index) => sum + kib - before[index]!, 0);
    expect(outputs.map(({ stdout }) => stdout.length)).toEqual(outputs.map(() => 16_777_000));
    expect(grown).toBeLessThan(40 << 10);
    expect(readdirSync(join(daemon.dir, "graph/outputs"))).toEqual([]);
  });

  test("a background process that keeps stdout open does not block the call", async () => {
    const start = performance.now();
    const result = await daemon.exec(id, "echo first; sleep 600 & exit 0", 90);
    expect(result).toMatchObject({ exitCode: 0, stdout: "first\n" });
    expect(performance.now() - start).toBeLessThan(60_000);
  });

  test("twenty at once have separate outputs", async () => {
    const numbers = Array.from({ length: 20 }, (_, index) => String(index));
    const results = await Promise.all(numbers.map((text) => daemon.exec(id, `echo ${text}`)));
    expect(results.map((result) => result.stdout.trim())).toEqual(numbers);
  });

  test("runs with the container's user, environment and folder", async () => {
    const other = await daemon.run(podId, pod, ["sleep", "600"], {
      envs: [{ key: "WORD", value: Buffer.from("here") }],
      working_dir: "/tmp",
      linux: {
        security_context: {
          run_as_user: { value: toLong(1000) },
          supplemental_groups: [toLong(77)],
        },
      },
    });
    const { stdout } = await daemon.exec(other, "echo $WORD; pwd; id -u; id -G");
    const lines = stdout.split("\n");
    expect(lines.slice(0, 3)).toEqual(["here", "/tmp", "1000"]);
    expect(lines[3]!.split(" ")).toContain("77");
    await daemon.client.RemoveContainer({ container_id: other });
  });

  test("in a container that is not running is FAILED_PRECONDITION", async () => {
    const created = await daemon.create(podId, pod, "true");
    const error = await failure(daemon.exec(created, "true"));
    expect(error.code).toBe("FAILED_PRECONDITION");
    expect(error.message).toContain("not running");
  });

  test("leaves nothing behind", async () => {
    const before = daemon.snapshot();
    await Promise.all(Array.from({ length: 10 }, () => daemon.exec(id, "echo x; exit 1")));
    await failure(daemon.exec(id, "sleep 600", 1));
    expect(await daemon.leaksSince(before)).toEqual([]);
  });
});

test("daemon.json's settings: the drain timeout of ExecSync, and the size of a log's line", async () => {
  const left = "(sleep 5; echo late) & echo first";
  const lineSizes = async () => {
    const script = "head -c 40000 /dev/zero | tr '\\0' x; echo";
    const { status, text } = await daemon.output(podId, pod, script);
    expect(text).toBe(`${"x".repeat(40_000)}\n`);
    const lines = readFileSync(status.log_path!, "utf8").trimEnd().split("\n");
    return lines.map((one) => one.split(" ")[3]!.length);
  };
  expect((await daemon.exec(id, left)).stdout).toBe("first\n");
  expect(await lineSizes()).toEqual([16_384, 16_384, 7_232]);
  daemon.writeConfig({
    "drain-exec-sync-io-timeout": "30s",
    "max-container-log-line-size": 30_000,
  });
  await daemon.restart();
  expect((await daemon.exec(id, left)).stdout).toBe("first\nlate\n");
  expect(await lineSizes()).toEqual([30_000, 10_000]);
  daemon.writeConfig({});
  await daemon.restart();
});

describe("logs", () => {
  const line = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{1,9}(Z|[+-]\d\d:\d\d) (stdout|stderr) [PF] .*$/;

  test("every line has time, stream and tag, in the order written", async () => {
    const container = await daemon.run(podId, pod, `echo a; echo b >&2; ${gate}; echo c`);
    for (const text of [" F a", " F b"]) await daemon.logged(container, text);
    await openGate(daemon, container);
    const { status } = await daemon.exited(container);
    const lines = readFileSync(status.log_path!, "utf8").trimEnd().split("\n");
    for (const one of lines) expect(one).toMatch(line);
    expect(lines.map((one) => one.split(" ").slice(1).join(" ")).toSorted()).toEqual([
      "stderr F b",
      "stdout F a",
      "stdout F c",
    ]);
    expect(lines.at(-1)).toEndWith("stdout F c");
  });

  test("a long line is split at 16,384 bytes, its last piece is F", async () => {
    const script = "head -c 40000 /dev/zero | tr '\\0' x; echo; echo end";
    const { status, text } = await daemon.output(podId, pod, script);
    const lines = readFileSync(status.log_path!, "utf8").trimEnd().split("\n");
    expect(lines.map((one) => one.split(" ")[2])).toEqual(["P", "P", "F", "F"]);
    const sizes = lines.map((one) => one.split(" ").slice(3).join(" ").length);
    expect(sizes).toEqual([16384, 16384, 7232, 3]);
    expect(text).toBe(`${"x".repeat(40000)}\nend\n`);
  });

  test("a last line without a newline gets none, and is written before the exit is committed", async () => {
    expect((await daemon.output(podId, pod, "printf unfinished")).text).toBe("unfinished");
  });

  test("100,000 lines arrive, all of them", async () => {
    const { text } = await daemon.output(podId, pod, "seq 100000");
    expect(text).toBe(Array.from({ length: 100_000 }, (_, index) => `${index + 1}\n`).join(""));
  });

  test("reopen: the new file exists on return, nothing is lost, the old file is unchanged", async () => {
    const script =
      "i=0; while [ $i -lt 200 ]; do echo line $i; i=$((i+1)); sleep 0.01; done; sleep 600";
    const container = await daemon.run(podId, pod, script);
    const { log_path } = await daemon.status(container);
    await daemon.logged(container, "line 20");
    renameSync(log_path, `${log_path}.1`);
    await daemon.client.ReopenContainerLog({ container_id: container });
    expect(existsSync(log_path)).toBe(true);
    const old = readFileSync(`${log_path}.1`, "utf8");
    const whole = () => logText(old) + logText(readFileSync(log_path, "utf8"));
    await until("the last line is there", () => whole().includes("line 199\n"));
    expect(whole()).toBe(Array.from({ length: 200 }, (_, index) => `line ${index}\n`).join(""));
    expect(readFileSync(`${log_path}.1`, "utf8")).toBe(old);
    await daemon.client.RemoveContainer({ container_id: container });
  });

  test("reopen of a container that is not running fails and creates no file", async () => {
    const { id: container, status } = await daemon.output(podId, pod, "true");
    renameSync(status.log_path!, `${status.log_path}.1`);
    const error = await failure(daemon.client.ReopenContainerLog({ container_id: container }));
    expect(error.code).toBe("FAILED_PRECONDITION");
    expect(existsSync(status.log_path!)).toBe(false);
  });

  test("missing parent folders are created, and without a path nothing is written", async () => {
    const deep = await daemon.run(podId, pod, "echo deep", { log_path: "a/b/0.log" });
    await daemon.exited(deep);
    const folder = pod.log_directory!;
    expect(readFileSync(join(folder, "a/b/0.log"), "utf8")).toContain("deep");
    const files = readdirSync(folder).length;
    const silent = await daemon.run(podId, pod, "seq 100000", { log_path: "" });
    expect((await daemon.exited(silent)).exitCode).toBe(0);
    expect(readdirSync(folder)).toHaveLength(files);
  });

  test("a folder that cannot be written fails the container, with its path", async () => {
    const file = join(daemon.dir, "a-file");
    writeFileSync(file, "");
    const config = { ...daemon.hostPodConfig(), log_directory: join(file, "logs") };
    const before = daemon.snapshot();
    const call = (async () => {
      const other = await daemon.runPod(config);
      try {
        return await daemon.run(other, config, "true");
      } finally {
        await daemon.removePod(other);
      }
    })();
    expect((await failure(call)).message).toContain(file);
    expect(await daemon.leaksSince(before)).toEqual([]);
  });

  test("they are in the pod's log folder", async () => {
    const { status } = await daemon.output(podId, pod, "true");
    expect(dirname(status.log_path!)).toBe(pod.log_directory!);
  });
});
