// Names pods and containers in the log as their users do: NAMESPACE/POD and the container's name.
import type { Fields } from "../base/log.ts";
import type { Container } from "../state/container.ts";
import { podName, type Sandbox } from "../state/sandbox.ts";
import type { Context } from "./context.ts";

export function sandboxFields({ id, config }: Pick<Sandbox, "id" | "config">): Fields {
  return { pod: podName(config), sandbox: id };
}

/** id: the container's. */
export function containerFields(
  { sandboxes }: { sandboxes: Pick<Context["sandboxes"], "listed"> },
  { id, sandboxId, config }: Pick<Container, "id" | "sandboxId" | "config">,
): Fields {
  const pod = podName(sandboxes.listed(sandboxId)?.config);
  return { pod, container: config.metadata?.name || undefined, id };
}

/** The program only: arguments may hold secrets. */
export function commandFields(cmd: readonly string[] | null | undefined): Fields {
  return { program: cmd?.[0], arguments: Math.max(0, (cmd?.length ?? 0) - 1) };
}
