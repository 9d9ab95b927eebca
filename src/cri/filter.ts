// Filters of the list calls: what they ask for is all of a record's that it must have.
import type { Container } from "../state/container.ts";
import type { Sandbox } from "../state/sandbox.ts";
import type { Context } from "./context.ts";

type Labels = { [key: string]: string } | null | undefined;

/** Whether every label that is asked for is there, with that value. */
function labelFilter(selector: Labels): (labels: Labels) => boolean {
  const wanted = Object.entries(selector ?? {});
  return (labels) => wanted.every(([key, value]) => labels?.[key] === value);
}

/** What a filter's id or reference means, or all when it asks for none. */
export function candidates<Item>(
  store: { find(id: string): Item | undefined; list(): Item[] },
  id: string | null | undefined,
): Item[] {
  if (!id) return store.list();
  const one = store.find(id);
  return one === undefined ? [] : [one];
}

/** What ContainerFilter and ContainerStatsFilter have in common. */
type ContainerSelector = {
  id?: string | null;
  pod_sandbox_id?: string | null;
  label_selector?: Labels;
};

/** Ids may be shortened; an unknown one selects nothing. @throws CriError for an ambiguous one. */
export function selectContainers(
  context: Context,
  filter: ContainerSelector | null | undefined,
): Container[] {
  const { id, pod_sandbox_id: pod, label_selector } = filter ?? {};
  const matches = labelFilter(label_selector);
  const sandboxId = pod ? (context.sandboxes.find(pod)?.id ?? "") : undefined;
  return candidates(context.containers, id).filter(
    (container) =>
      (sandboxId === undefined || container.sandboxId === sandboxId) &&
      matches(container.config.labels),
  );
}

/** The same for pods. */
export function selectSandboxes(
  context: Context,
  filter: { id?: string | null; label_selector?: Labels } | null | undefined,
): Sandbox[] {
  const matches = labelFilter(filter?.label_selector);
  return candidates(context.sandboxes, filter?.id).filter(({ config }) => matches(config.labels));
}
