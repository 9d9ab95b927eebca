// Looks up sandboxes, checking that their namespaces still exist, and lists their containers.
import { isPinned } from "../node/namespaces.ts";
import type { Container } from "../state/container.ts";
import { notReady, type Sandbox } from "../state/sandbox.ts";
import type { Context } from "./context.ts";
import { requireReady } from "./preconditions.ts";

/** @throws CriError NOT_FOUND, or FAILED_PRECONDITION for a sandbox that is not ready. */
export async function readySandbox(context: Context, id: string): Promise<Sandbox> {
  return requireReady(await verifySandbox(context, context.sandboxes.get(id)));
}

/** Marks a ready sandbox NOTREADY if one of its namespace files no longer pins its namespace. */
export async function verifySandbox(context: Context, sandbox: Sandbox): Promise<Sandbox> {
  if (sandbox.phase.phase !== "ready") return sandbox;
  for (const pinned of Object.values(sandbox.namespaces)) {
    if (pinned === undefined || isPinned(pinned.path, BigInt(pinned.inode))) continue;
    const message = `the namespace ${pinned.path} is gone`;
    context.log.warn(message, { sandbox: sandbox.id });
    return (await context.sandboxes.update(sandbox.id, (old) => notReady(old, message))) ?? sandbox;
  }
  return sandbox;
}

export function containersOf(context: Context, sandboxId: string): Container[] {
  return context.containers.list().filter((container) => container.sandboxId === sandboxId);
}
