// Tests exec and attach of containers that a shim runs: runc's shim and, where test/shims has built
// it, gVisor's, whose pods have a kernel of their own.
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import type { PodSandboxConfig } from "../../src/proto/types.ts";
import { until } from "../expect.ts";
import { type Daemon, startDaemon } from "../harness.ts";
import { logText } from "../log_text.ts";
import { chosenRuncShim, gvisorHandler, gvisorShim, runcHandler } from "../shim_programs.ts";
import { type Asked, type Conversation, converse, exitCodeIn } from "../stream_client.ts";

const version = chosenRuncShim();
const hasGvisor = existsSync(gvisorShim);
const handlers = [
  { name: "runc", built: version !== undefined, sandboxed: false },
  { name: "gvisor", built: hasGvisor, sandboxed: true },
];
let daemon: Daemon;

describe.skipIf(version === undefined && !hasGvisor)("streams by a shim", () => {
  beforeAll(async () => {
    daemon = await startDaemon();
    await daemon.stop();
    const runc = version === undefined ? {} : { "runc-shim": runcHandler(version) };
    const gvisor = hasGvisor ? { gvisor: gvisorHandler(join(daemon.dir, "gvisor.toml")) } : {};
    daemon.writeConfig({ runtimes: { ...runc, ...gvisor } });
    await daemon.start();
  });
  afterAll(() => daemon?.[Symbol.asyncDispose]());

  describe.each(handlers.filter(({ built }) => built))("of $name", ({ name, sandboxed }) => {
    let pod: PodSandboxConfig;
    let podId: string;
    beforeAll(async () => {
      pod = daemon.podConfig();
      const runtime_handler = name === "runc" ? "runc-shim" : name;
      podId = (await daemon.client.RunPodSandbox({ config: pod, runtime_handler })).pod_sandbox_id;
    });
    afterAll(() => daemon.removePod(podId));

    /** Waits until a terminal, whose shell reads lines, has a size. */
    async function sizeIs(talk: Conversation, size: string) {
      await until("the terminal has the client's size", async () => {
        await talk.type("stty size\n");
        await Bun.sleep(100);
        return talk.heard.stdout.includes(size);
      });
    }

    async function exec(id: string, command: string, asked: Asked) {
      const cmd = ["sh", "-c", command];
      const { url } = await daemon.client.Exec({ container_id: id, cmd, ...asked });
      return converse(url, asked);
    }

    test("the kernel is the node's, or gVisor's", async () => {
      const { stdout } = await daemon.exec(await daemon.run(podId, pod, "sleep 1000"), "dmesg");
      expect(stdout.includes("Starting gVisor")).toBe(sandboxed);
    });

    test("two containers reach each other on localhost", async () => {
      await daemon.run(podId, pod, "while :; do echo served | nc -l -p 8080; done");
      const ask = "until nc 127.0.0.1 8080 </dev/null 2>/dev/null; do sleep 0.2; done";
      const { text } = await daemon.output(podId, pod, ask);
      expect(text).toBe("served\n");
    });

    test("an exec takes its input to the end, and returns all output and its code", async () => {
      const id = await daemon.run(podId, pod, "sleep 1000");
      const asked = { stdin: true, stdout: true, stderr: true };
      const talk = await exec(id, "wc -c; seq 20000; echo err >&2; exit 9", asked);
      for (let part = 0; part < 20; part++) await talk.type("x".repeat(50_000));
      await talk.endInput();
      const { stdout, stderr, status } = await talk.end;
      const numbers = Array.from({ length: 20_000 }, (_, index) => `${index + 1}\n`).join("");
      expect(stdout === `1000000\n${numbers}`).toBe(true);
      expect([stderr, exitCodeIn(status)]).toEqual(["err\n", 9]);
    });

    test.each<[Asked, { stdout: string; stderr: string }]>([
      [{ stdout: true }, { stdout: "out\n", stderr: "" }],
      [{ stderr: true }, { stdout: "", stderr: "err\n" }],
    ])("an exec returns only the output that is wanted: %j", async (asked, heard) => {
      const id = await daemon.run(podId, pod, "sleep 1000");
      const talk = await exec(id, "echo out; echo err >&2", asked);
      const { stdout, stderr, status } = await talk.end;
      expect({ stdout, stderr }).toEqual(heard);
      expect(exitCodeIn(status)).toBe(0);
    });

    test("an exec has a terminal with the client's size", async () => {
      const id = await daemon.run(podId, pod, "sleep 1000");
      const talk = await exec(id, "while read line; do eval $line; done", {
        stdin: true,
        stdout: true,
        tty: true,
      });
      await talk.resize(91, 37);
      await sizeIs(talk, "37 91");
      await talk.type("exit 4\n");
      expect(exitCodeIn((await talk.end).status)).toBe(4);
    });

    test("attach gives input to a container with a terminal, and its output", async () => {
      const shell = "while read line; do eval $line; done";
      const id = await daemon.run(podId, pod, shell, { stdin: true, tty: true });
      const asked = { stdin: true, stdout: true, tty: true };
      const { url } = await daemon.client.Attach({ container_id: id, ...asked });
      const talk = await converse(url, asked);
      await talk.resize(92, 38);
      await sizeIs(talk, "38 92");
      await talk.type("echo pro''mpt\n");
      await talk.hears("prompt");
      await talk.type("exit 3\n");
      const { exitCode, status } = await daemon.exited(id);
      expect(exitCode).toBe(3);
      expect(logText(readFileSync(status.log_path!, "utf8"))).toContain("prompt");
      await talk.end;
    });

    test("attach ends the input of a container that takes it once", async () => {
      const id = await daemon.run(podId, pod, "cat; echo done", { stdin: true, stdin_once: true });
      const asked = { stdin: true, stdout: true, stderr: true };
      const { url } = await daemon.client.Attach({ container_id: id, ...asked });
      const talk = await converse(url, asked);
      await talk.type("some text\n");
      await talk.endInput();
      expect((await talk.end).stdout).toBe("some text\ndone\n");
      expect((await daemon.exited(id)).exitCode).toBe(0);
    });
  });
});
