// List filters: a record matches when it has the requested id and every requested label.
import type { Container } from "../state/container.ts";
import type { Sandbox } from "../state/sandbox.ts";
import type { Context } from "./context.ts";

type Stores = {
  sandboxes: Pick<Context["sandboxes"], "find" | "list">;
  containers: Pick<Context["containers"], "find" | "list">;
};

type Labels = { [key: string]: string } | null | undefined;

/** Matches labels that include every one of the selector, with the same value. */
function labelFilter(selector: Labels): (labels: Labels) => boolean {
  const required = Object.entries(selector ?? {});
  return (labels) => required.every(([key, value]) => labels?.[key] === value);
}

/** The item with the filter's id or reference; all items if the filter has none. */
export function candidates<Item>(
  store: { find(id: string): Item | undefined; list(): Item[] },
  id: string | null | undefined,
): Item[] {
  if (!id) return store.list();
  const one = store.find(id);
  return one === undefined ? [] : [one];
}

/** The common fields of PodSandboxFilter and PodSandboxStatsFilter. */
type PodSelector = { id?: string | null; label_selector?: Labels };
/** The common fields of ContainerFilter and ContainerStatsFilter. */
type ContainerSelector = PodSelector & { pod_sandbox_id?: string | null };

/** Ids may be prefixes; an unknown one selects nothing. @throws CriError for an ambiguous prefix. */
export function selectContainers(
  context: Stores,
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

/** Selects pods in the same way. */
export function selectSandboxes(
  context: Pick<Stores, "sandboxes">,
  filter: PodSelector | null | undefined,
): Sandbox[] {
  const matches = labelFilter(filter?.label_selector);
  return candidates(context.sandboxes, filter?.id).filter(({ config }) => matches(config.labels));
}
