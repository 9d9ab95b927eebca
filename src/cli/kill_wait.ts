// Implements isulad-ts kill and wait.
import { defineCommand } from "citty";
import { CriError, errnoOf } from "../base/errors.ts";
import { trustedJsonValue } from "../base/json.ts";
import { readTextIfExists } from "../sys/file.ts";
import { signalNumber } from "../sys/signals.ts";
import type { Client } from "./client.ts";
import {
  containerOperand,
  forEach,
  forEachContainer,
  hostArg,
  withClient,
} from "./daemon_command.ts";
import { repeatable, UsageError } from "./options.ts";
import { print } from "./output.ts";
import { stopContainer } from "./stop_remove.ts";
import { shortId } from "./text.ts";
import { waitForExit } from "./wait_for_exit.ts";

const sigkill = 9;

export const kill = defineCommand({
  meta: { description: "Send a signal to the first process of containers" },
  args: {
    container: { ...containerOperand, ...repeatable },
    signal: {
      type: "string",
      alias: "s",
      default: "KILL",
      valueHint: "signal",
      description: "Name or number",
    },
    ...hostArg,
  },
  run: ({ args }) =>
    withClient(args, (client, find) => {
      const signal = signalOf(args.signal);
      return forEachContainer(find, args._, async ({ id }) => {
        if (signal === sigkill) await stopContainer(client, id, 0);
        else send(await processOf(client, id), signal);
      });
    }),
});

/** @throws UsageError */
function signalOf(text: string): number {
  try {
    return signalNumber(text);
  } catch {
    throw new UsageError(`--signal takes a name or a number, such as TERM or 15, not "${text}"`);
  }
}

function send(pid: number, signal: number): void {
  try {
    process.kill(pid, signal);
  } catch (error) {
    const why = errnoOf(error) === "EPERM" ? "run this as root" : "it has just ended";
    throw new CriError("FAILED_PRECONDITION", `cannot signal process ${pid}: ${why}`);
  }
}

/**
 * Returns the process id of a running container on this host.
 * @throws CriError FAILED_PRECONDITION if it does not run, or not on this host's kernel
 */
export async function processOf(client: Client, id: string): Promise<number> {
  const { info } = await client.ContainerStatus({ container_id: id, verbose: true });
  const { pid = 0 } = trustedJsonValue(info?.["info"] ?? "{}") as { pid?: number };
  const name = `container ${shortId(id)}`;
  if (pid === 0) {
    throw new CriError("FAILED_PRECONDITION", `${name} is not running: see isulad-ts ps -a`);
  }
  // Of a container in a guest, the id is one in the guest.
  const cgroups = await readTextIfExists(`/proc/${pid}/cgroup`);
  if (cgroups?.includes(id)) return pid;
  const advice = "isulad-ts exec reaches its processes";
  throw new CriError("FAILED_PRECONDITION", `${name} has no process of this host: ${advice}`);
}

export const wait = defineCommand({
  meta: { description: "Wait until containers have ended, and print their exit codes" },
  args: { container: { ...containerOperand, ...repeatable }, ...hostArg },
  run: ({ args }) =>
    withClient(args, (client, find) =>
      forEach(args._, async (text) => {
        const { id } = await find.container(text);
        const status = await waitForExit(client, id);
        if (status === undefined) throw new CriError("NOT_FOUND", "was removed while it ran");
        print(String(status.exit_code ?? 0));
      }),
    ),
});
