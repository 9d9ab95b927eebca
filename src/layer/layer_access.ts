// Decides whether a pull may reuse a layer that is on the node. A diff ID is no secret: whoever knows one could otherwise
// run on a layer of a private image that somebody else has pulled.
//
// Decision: a layer is restricted while all pulls that brought it used credentials. For a repository that it has not come
// from, its registry is asked for the blob with the credentials of the pull. That proves something only for a blob whose
// content the node has seen, at a registry that the layer came from: anybody's own registry may claim to have it. In
// all other cases the blob is downloaded, which is the proof.
import { usesSecrets } from "../registry/pull_session.ts";
import type { LayerSource } from "./job_unpack.ts";
import type { LayerRecord } from "./layer_record.ts";

/** Undefined: the layer is public, or was made by an earlier build. */
export type LayerAccess = LayerRecord["restricted"];

/** The pull that wants a layer; undefined for an archive on this host, which only root can load. */
type Puller = { domain: string; repository: string; usesSecrets: boolean } | undefined;

/** Those of which a layer keeps the last. */
const repositoriesMax = 64;
const digestsMax = 8;

export function pullerOf(source: LayerSource): Puller {
  if (source.kind !== "registry") return undefined;
  const { domain, repository } = source.session;
  const name = `${domain}/${repository}`;
  return { domain, repository: name, usesSecrets: usesSecrets(source.session) };
}

/** digest: of the blob that the puller's manifest names. */
export function reuseOf(
  access: LayerAccess,
  puller: Puller,
  digest: string,
): "allowed" | "ask" | "fetch" {
  if (access === undefined || puller === undefined) return "allowed";
  const { repositories, digests } = access;
  if (repositories.includes(puller.repository)) return "allowed";
  const isFromThere = repositories.some((name) => name.startsWith(`${puller.domain}/`));
  return isFromThere && digests.includes(digest) ? "ask" : "fetch";
}

/** The access to a layer that the puller has downloaded. */
export function firstAccess(puller: Puller, digest: string): LayerAccess {
  if (!puller?.usesSecrets) return undefined;
  return { repositories: [puller.repository], digests: [digest] };
}

/** The access to a layer that the puller was allowed to reuse; digest: of a blob that turned out to be the layer. */
export function accessAfter(access: LayerAccess, puller: Puller, digest?: string): LayerAccess {
  if (access === undefined || puller === undefined) return access;
  if (!puller.usesSecrets) return undefined;
  const add = (known: string[], more: string | undefined) =>
    more === undefined || known.includes(more) ? known : [...known, more];
  return {
    repositories: add(access.repositories, puller.repository).slice(-repositoriesMax),
    digests: add(access.digests, digest).slice(-digestsMax),
  };
}

/** The access to content that several layers have; none: no layer. */
export function commonAccess(all: readonly LayerAccess[]): LayerAccess {
  if (all.length === 0 || all.includes(undefined)) return undefined;
  const union = (field: "repositories" | "digests") => [
    ...new Set(all.flatMap((one) => one![field])),
  ];
  return { repositories: union("repositories"), digests: union("digests") };
}
