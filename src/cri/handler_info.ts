// Describes runtime handlers for Status and `isulad-ts info`: their kind, and what their pods cannot have.
import { basename } from "node:path";
import { jsonText } from "../base/json.ts";
import { guestTraits } from "../shim/guests.ts";
import { isByShim, isInGuest, type Sandbox } from "../state/sandbox.ts";
import type { Context, Handler } from "./context.ts";
import { supportsUserNamespaces } from "./runtime_handlers.ts";

type Described = Pick<Context, "host" | "images"> & {
  handlers: Context["handlers"];
  config: Pick<Context["config"], "defaultRuntime">;
};

/** Returns a JSON object with a member for each handler. */
export function handlersInfo(context: Described): string {
  const named = [...context.handlers].filter(([name]) => name !== "");
  return jsonText(
    Object.fromEntries(
      named.map(([name, handler]) => {
        const { command, problem } = handler;
        const isDefault = name === context.config.defaultRuntime;
        const about = {
          kind: isByShim(handler) ? "shim" : "oci",
          type: command.shim?.type,
          path: command.path,
          sandboxed: isInGuest(handler),
        };
        return [name, { ...about, default: isDefault, problem, lacks: lacks(context, handler) }];
      }),
    ),
  );
}

/**
 * Returns the name of what runs the containers: a shim's type or an OCI runtime's executable. By it kata-monitor tells
 * which pods are Kata's. "" for a handler that daemon.json no longer has.
 */
export function runtimeType(
  { handlers }: Pick<Context, "handlers">,
  { runtimeHandler }: Pick<Sandbox, "runtimeHandler">,
): string {
  const command = handlers.get(runtimeHandler)?.command;
  return command === undefined ? "" : (command.shim?.type ?? basename(command.path));
}

/** Lists what pods of the handler are refused. */
function lacks(context: Described, handler: Handler): string[] {
  const { shim } = handler.command;
  const isGuest = isInGuest(handler);
  const hasHostNetwork = !isGuest || guestTraits(shim!).hostNetwork;
  const lacking: [boolean, string][] = [
    [!hasHostNetwork, "the node's network (hostNetwork: true)"],
    [!supportsUserNamespaces(context, handler), "user namespaces (hostUsers: false)"],
    [!handler.support.recursiveReadOnlyMounts, "recursive read-only mounts"],
    [isGuest, "bidirectional mount propagation"],
    [isGuest, "another container's pid namespace as target"],
    [isGuest, "checkpoints"],
  ];
  return lacking.filter(([isLacking]) => isLacking).map(([, text]) => text);
}
