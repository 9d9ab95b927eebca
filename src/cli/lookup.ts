// Finds the container or pod that the user means by namespace/pod[/container], a unique name, or the beginning
// of an id.
import { nearest } from "../base/edit_distance.ts";
import { CriError } from "../base/errors.ts";
import { toBigInt } from "../base/int64.ts";
import { quoted } from "../base/text.ts";
import type { Container, PodSandbox } from "../proto/types.ts";
import { cellsOf, padded } from "./cells.ts";
import type { Client } from "./client.ts";
import { containerStates, podStates } from "./states.ts";
import { age, shortId } from "./text.ts";

/** A container or pod. path: namespace/pod, or namespace/pod/container. */
export type Candidate = {
  id: string;
  path: string;
  attempt: number;
  createdNs: bigint;
  state: string;
};
type Kind = "container" | "pod";

export type Lookup = {
  /** @throws CriError NOT_FOUND, INVALID_ARGUMENT if several match */
  container(text: string): Promise<Candidate>;
  /** @throws CriError NOT_FOUND, INVALID_ARGUMENT if several match */
  pod(text: string): Promise<Candidate>;
};

const candidatesMax = 10;
/** More different letters are no mistyped name. */
const typosMax = 2;

/** Asks the daemon for its lists at the first use, and only once. */
export function lookup(client: Client): Lookup {
  let pods: Promise<PodSandbox[]> | undefined;
  let containers: Promise<Candidate[]> | undefined;
  const listPods = () => (pods ??= client.ListPodSandbox({}).then(({ items }) => items));
  const listContainers = () => (containers ??= containersOf(client, listPods()));
  return {
    container: async (text) => choose("container", text, await listContainers()),
    pod: async (text) => choose("pod", text, (await listPods()).map(podCandidate)),
  };
}

/** Lists all containers with their paths, newest first. */
export async function containersOf(
  client: Client,
  pods: Promise<PodSandbox[]>,
): Promise<Candidate[]> {
  const [{ containers }, listed] = await Promise.all([client.ListContainers({}), pods]);
  const podPaths = new Map(listed.map((pod) => [pod.id, podCandidate(pod).path]));
  return containers
    .map((container) => containerCandidate(container, podPaths.get(container.pod_sandbox_id)))
    .sort(newestFirst);
}

/** podPath: undefined: the pod was removed while the lists were read. */
function containerCandidate(container: Container, podPath = "unknown/unknown"): Candidate {
  const { id, metadata, created_at, state } = container;
  return {
    id: id ?? "",
    path: `${podPath}/${metadata?.name ?? ""}`,
    attempt: metadata?.attempt ?? 0,
    createdNs: toBigInt(created_at),
    state: containerStates[state ?? 0] ?? "",
  };
}

export function podCandidate({ id, metadata, created_at, state }: PodSandbox): Candidate {
  return {
    id: id ?? "",
    path: `${metadata?.namespace ?? ""}/${metadata?.name ?? ""}`,
    attempt: metadata?.attempt ?? 0,
    createdNs: toBigInt(created_at),
    state: podStates[state ?? 0] ?? "",
  };
}

/**
 * Chooses by id, else by the beginning of an id, path or name, else (a container) by its pod's name. Of the
 * attempts of one container or pod, a name means the newest.
 * @throws CriError NOT_FOUND, INVALID_ARGUMENT if several match
 */
export function choose(kind: Kind, text: string, candidates: readonly Candidate[]): Candidate {
  const whole = candidates.find(({ id }) => id === text);
  if (whole !== undefined) return whole;
  const byId = candidates.filter(({ id }) => text !== "" && id.startsWith(text));
  let byName = candidates.filter(({ path }) => isNamed(path, text));
  if (kind === "container" && byName.length === 0) {
    byName = candidates.filter(({ path }) => isNamed(podOf(path), text));
  }
  const found = [...new Set([...byId, ...newestAttempts(byName)])];
  if (found.length === 1) return found[0]!;
  throw found.length === 0 ? notFound(kind, text, candidates) : ambiguous(kind, text, found);
}

function isNamed(path: string, text: string): boolean {
  return path === text || (!text.includes("/") && nameOf(path) === text);
}

function nameOf(path: string): string {
  return path.slice(path.lastIndexOf("/") + 1);
}

function podOf(containerPath: string): string {
  return containerPath.slice(0, containerPath.lastIndexOf("/"));
}

function newestAttempts(candidates: readonly Candidate[]): Candidate[] {
  const newest = new Map<string, Candidate>();
  for (const candidate of candidates.toSorted(newestFirst)) {
    if (!newest.has(candidate.path)) newest.set(candidate.path, candidate);
  }
  return [...newest.values()];
}

function newestFirst(a: Candidate, b: Candidate): number {
  return Number(b.createdNs - a.createdNs) || b.attempt - a.attempt;
}

function ambiguous(kind: Kind, text: string, found: readonly Candidate[]): CriError {
  const shown = found.slice(0, candidatesMax);
  const width = Math.max(...shown.map(({ path }) => cellsOf(path)));
  const lines = shown.map(({ id, path, state, createdNs }) => {
    const when = age(Number(createdNs)).toLowerCase();
    return `\n  ${shortId(id)}  ${padded(path, width)}  ${state}, created ${when}`;
  });
  const more = found.length - shown.length;
  if (more > 0) lines.push(`\n  and ${more} more`);
  const form = kind === "pod" ? "namespace/pod" : "namespace/pod/container";
  const message = `${quoted(text)} matches ${found.length} ${kind}s: give ${form}, or more of the id`;
  return new CriError("INVALID_ARGUMENT", message + lines.join(""));
}

function notFound(kind: Kind, text: string, candidates: readonly Candidate[]): CriError {
  const paths = candidates.map(({ path }) => path);
  const names = text.includes("/") ? paths : paths.map(nameOf);
  const hint = nearest(text, names, typosMax);
  const advice = hint === "" ? "" : `; did you mean ${hint}?`;
  const list = kind === "pod" ? "isulad-ts pods" : "isulad-ts ps -a";
  const message = `${kind} ${text} not found${advice || ":"} ${list} lists all`;
  return new CriError("NOT_FOUND", message);
}
