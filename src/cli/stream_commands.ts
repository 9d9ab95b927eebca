// Implements isulad-ts exec, attach and port-forward.
import { createServer, type AddressInfo, type Socket } from "node:net";
import { defineCommand } from "citty";
import { CriError, messageOf } from "../base/errors.ts";
import { toLong } from "../base/int64.ts";
import { trustedJsonValue } from "../base/json.ts";
import { runtime } from "../proto/messages.js";
import type { SpdySession } from "../sys/spdy.ts";
import type { Client } from "./client.ts";
import { catchInterrupts } from "./interrupts.ts";
import { print, ReaderGone, readerGoneCode, say, writeOut } from "./output.ts";
import { repeatable, UsageError } from "./options.ts";
import { containerOperand, hostArg, podOperand, secondsOf, withClient } from "./daemon_command.ts";
import { startFailureCode } from "./start_exit_code.ts";
import { openSpdy, runRemote } from "./stream_client.ts";
import { input, rawTerminal, releaseInput, requireTerminal, sizes } from "./terminal.ts";

// Added to --timeout for the call's deadline, so that the daemon's own timeout comes first.
const execMarginMs = 30_000;

const inputArg = {
  interactive: { type: "boolean", alias: "i", description: "Pass standard input" },
} as const;

export const exec = defineCommand({
  meta: { description: "Run a command in a container" },
  args: {
    container: containerOperand,
    command: {
      type: "positional",
      required: false,
      description: "The command and its arguments",
      ...repeatable,
    },
    ...inputArg,
    tty: { type: "boolean", alias: "t", description: "Allocate a terminal" },
    sync: { type: "boolean", alias: "s", description: "Print the output when the command exits" },
    timeout: {
      type: "string",
      default: "0",
      valueHint: "seconds",
      description: "With --sync: kill the command after this time; 0: no limit",
    },
    ...hostArg,
  },
  run: ({ args }) =>
    withClient(args, async (client, find) => {
      const [text = "", ...cmd] = args._;
      if (cmd.length === 0)
        throw new UsageError("exec needs a command, such as sh, behind the container");
      const seconds = secondsOf(args.timeout, "--timeout");
      if (args.sync && (args.interactive || args.tty)) {
        throw new UsageError("--sync excludes -i and -t");
      }
      if (seconds > 0 && !args.sync) throw new UsageError("--timeout needs --sync");
      const wanted = { stdin: args.interactive === true, tty: args.tty === true };
      requireTerminal(wanted);
      const { id: container_id } = await find.container(text);
      try {
        if (args.sync) return await execSync(client, { container_id, cmd }, seconds);
        const streams = { ...wanted, stdout: true, stderr: !wanted.tty };
        const { url } = await client.Exec({ container_id, cmd, ...streams });
        return await converse(url, wanted);
      } catch (error) {
        if (error instanceof ReaderGone) return readerGoneCode;
        say(`isulad-ts: ${messageOf(error)}`);
        return startFailureCode(messageOf(error));
      }
    }),
});

async function execSync(
  client: Client,
  request: { container_id: string; cmd: string[] },
  seconds: number,
): Promise<number> {
  const timeoutMs = seconds === 0 ? 0 : seconds * 1000 + execMarginMs;
  const answer = await client.ExecSync({ ...request, timeout: toLong(seconds) }, { timeoutMs });
  await writeOut("stdout", answer.stdout ?? new Uint8Array());
  await writeOut("stderr", answer.stderr ?? new Uint8Array());
  return answer.exit_code ?? 0;
}

/** Connects the terminal or standard streams to the command until it exits; returns its exit code. */
async function converse(url: string, wanted: { stdin: boolean; tty: boolean }): Promise<number> {
  using _ = wanted.tty && wanted.stdin ? rawTerminal() : undefined;
  try {
    return await runRemote(url, {
      write: writeOut,
      ...(wanted.stdin ? { stdin: input() } : {}),
      ...(wanted.tty ? { sizes: sizes() } : {}),
    });
  } finally {
    if (wanted.stdin) releaseInput();
  }
}

export const attach = defineCommand({
  meta: { description: "Attach to a running container's output until it exits" },
  args: {
    container: containerOperand,
    ...inputArg,
    tty: { type: "boolean", alias: "t", description: "It has a terminal (default: look it up)" },
    ...hostArg,
  },
  run: ({ args }) =>
    withClient(args, async (client, find) => {
      const { id: container_id } = await find.container(args.container);
      const tty = args.tty === true || (await hasTerminal(client, container_id));
      const wanted = { stdin: args.interactive === true, tty };
      const { url } = await client.Attach({ container_id, ...wanted, stdout: true, stderr: !tty });
      try {
        await converse(url, wanted);
      } catch (error) {
        if (error instanceof ReaderGone) return readerGoneCode;
        throw error;
      }
      const { status } = await client.ContainerStatus({ container_id });
      const { CONTAINER_EXITED } = runtime.v1.ContainerState;
      return status?.state === CONTAINER_EXITED ? (status.exit_code ?? 0) : 0;
    }),
});

async function hasTerminal(client: Client, container_id: string): Promise<boolean> {
  const { info } = await client.ContainerStatus({ container_id, verbose: true });
  const { config } = trustedJsonValue(info?.["info"] ?? "{}") as { config?: { tty?: boolean } };
  return config?.tty === true;
}

export const portForward = defineCommand({
  meta: { description: "Forward local ports to a pod until interrupted" },
  args: {
    pod: podOperand,
    ports: {
      type: "positional",
      required: false,
      description: "[LOCAL:]PORT, one or more",
      ...repeatable,
    },
    ...hostArg,
  },
  run: ({ args }) =>
    withClient(args, async (client, find) => {
      const [text = "", ...mappings] = args._;
      const ports = mappings.map(portsOf);
      if (ports.length === 0) throw new UsageError("At least one [LOCAL:]PORT is required");
      const { id: pod_sandbox_id } = await find.pod(text);
      const { url } = await client.PortForward({ pod_sandbox_id });
      const session = await openSpdy(url, "portforward.k8s.io");
      await using servers = new AsyncDisposableStack();
      for (const { local, remote } of ports) servers.use(await listen(session, local, remote));
      // Caught from here on: until then nothing would react, and a signal just ends the process.
      using interrupts = catchInterrupts();
      const interrupted = new Promise((resolve) =>
        interrupts.signal.addEventListener("abort", resolve, { once: true }),
      );
      await Promise.race([session.run(), interrupted]);
      session.wire.close();
      if (interrupts.exitCode !== undefined) return interrupts.exitCode;
      throw new CriError("UNAVAILABLE", "the pod or the daemon closed the connection");
    }),
});

function portsOf(arg: string): { local: number; remote: number } {
  const match = /^(?:(\d{1,5}):)?(\d{1,5})$/.exec(arg);
  const [local, remote] = [Number(match?.[1] ?? match?.[2]), Number(match?.[2])];
  if (match !== null && local <= 65_535 && remote >= 1 && remote <= 65_535) {
    return { local, remote };
  }
  throw new UsageError(`"${arg}" is not [LOCAL:]PORT (1 to 65535; LOCAL 0 picks a free port)`);
}

async function listen(
  session: SpdySession,
  local: number,
  remote: number,
): Promise<AsyncDisposable> {
  const clients = new Set<Socket>();
  const server = createServer({ allowHalfOpen: true, noDelay: true }, (client) => {
    clients.add(client);
    client.on("error", () => {}); // reads and writes report it
    client.once("close", () => clients.delete(client));
    forward(session, client, remote).catch((error: unknown) => {
      say(`port ${remote}: ${messageOf(error)}`);
      client.destroy();
    });
  });
  await new Promise<void>((resolve, reject) => {
    server.once("error", reject);
    server.listen(local, "127.0.0.1", resolve);
  });
  print(`Forwarding from 127.0.0.1:${(server.address() as AddressInfo).port} -> ${remote}`);
  return {
    [Symbol.asyncDispose]: async () => {
      for (const client of clients) client.destroy();
      await new Promise((resolve) => server.close(resolve));
    },
  };
}

let requests = 0;

async function forward(session: SpdySession, client: Socket, remote: number): Promise<void> {
  const headers = { port: String(remote), requestid: String(requests++) };
  const error = await session.open({ ...headers, streamtype: "error" });
  await error.end();
  const data = await session.open({ ...headers, streamtype: "data" });
  const up = (async () => {
    for await (const chunk of client) await data.write(chunk as Buffer);
    await data.end();
  })();
  up.catch(() => {}); // the pod's side or this connection was closed
  for await (const chunk of data.chunks()) {
    if (!client.write(chunk)) await new Promise((resolve) => client.once("drain", resolve));
  }
  client.end();
  const said: Buffer[] = [];
  for await (const chunk of error.chunks()) said.push(chunk);
  if (said.length > 0) throw new Error(Buffer.concat(said).toString());
}
