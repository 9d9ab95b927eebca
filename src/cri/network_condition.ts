// Determines CRI's NetworkReady from the CNI lists of all handlers.
// Decision: as in containerd, only the default handler's network makes NetworkReady false, because a node that is not
// ready takes no pods of the other handlers either. The message has the problems of the other handlers' networks.
import { jsonText } from "../base/json.ts";
import type { CniLists } from "../node/cni.ts";
import type * as cri from "../proto/types.ts";
import type { Context } from "./context.ts";

type Asked = Pick<Context, "handlers"> & { cni: Pick<Context["cni"], "status"> };

export async function networkCondition({ cni, handlers }: Asked): Promise<cri.RuntimeCondition> {
  const own = handlers.get("")?.cniLists;
  const ownKey = jsonText(own);
  const { ready, reason, message } = await cni.status(own);
  const others = new Map<string, { lists: CniLists; names: string[] }>();
  for (const [name, { cniLists: lists }] of handlers) {
    if (lists === own) continue;
    const key = jsonText(lists);
    if (key === ownKey) continue;
    const known = others.get(key) ?? { lists, names: [] };
    others.set(key, { lists, names: [...known.names, name] });
  }
  const problems = await Promise.all(
    [...others.values()].map(async ({ lists, names }) => {
      const status = await cni.status(lists);
      return status.ready ? "" : `pods of ${names.join(", ")} cannot start: ${status.message}`;
    }),
  );
  const messages = [message, ...problems].filter((one) => one !== "");
  return { type: "NetworkReady", status: ready, reason, message: messages.join("; ") };
}
