// Determines CRI's NetworkReady from the CNI lists of all handlers.
// Decision: as in containerd, only the default handler's network makes it false, because a node that is not
// ready takes no pods of the other handlers either. Their problems are in its message.
import type * as cri from "../proto/types.ts";
import type { Context } from "./context.ts";

export async function networkCondition({
  cni,
  handlers,
}: Pick<Context, "handlers"> & {
  cni: Pick<Context["cni"], "status">;
}): Promise<cri.RuntimeCondition> {
  const own = handlers.get("")?.cniConfDir;
  const { ready, reason, message } = await cni.status(own);
  const others = new Map<string | undefined, string[]>();
  for (const [name, { cniConfDir }] of handlers) {
    if (cniConfDir === own) continue;
    others.set(cniConfDir, [...(others.get(cniConfDir) ?? []), name]);
  }
  const problems = await Promise.all(
    [...others].map(async ([confDir, names]) => {
      const status = await cni.status(confDir);
      return status.ready ? "" : `pods of ${names.join(", ")} cannot start: ${status.message}`;
    }),
  );
  const messages = [message, ...problems].filter((one) => one !== "");
  return { type: "NetworkReady", status: ready, reason, message: messages.join("; ") };
}
