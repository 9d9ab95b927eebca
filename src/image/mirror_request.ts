// Parses the requests of the OCI distribution protocol that a read-only mirror answers.
import { URLSearchParams } from "node:url";
import { parseReference } from "../registry/reference.ts";
import type { Head } from "../sys/http_upgrade.ts";

export type MirrorRequest = {
  isHead: boolean;
  /** "version": the root of the API. */
  kind: "version" | "manifests" | "blobs";
  /** With its registry; "" for "version". */
  repository: string;
  /** A tag or a digest. */
  name: string;
};

/** An error of the protocol (distribution-spec, error codes). */
export class MirrorError extends Error {
  /** As in the first line of a response. */
  readonly status: string;
  readonly code: string;
  readonly headers: [string, string][];

  constructor(
    { status, code, headers = [] }: { status: string; code: string; headers?: [string, string][] },
    message: string,
  ) {
    super(message);
    this.status = status;
    this.code = code;
    this.headers = headers;
  }
}

/** A repository has at most 255 characters, a digest at most 135. */
const targetCharsMax = 1024;

/**
 * The query parameter ns names the registry, as containerd's requests to mirrors do; without ns the registry is
 * docker.io, the only one for which Docker uses mirrors. @throws MirrorError.
 */
export function parseMirrorRequest({ line }: Pick<Head, "line">): MirrorRequest {
  const [, method, target = ""] = /^(\S+) (\/\S*) HTTP\/1\.[01]$/.exec(line) ?? [];
  if (method === undefined || target.length > targetCharsMax) {
    throw new MirrorError(
      { status: "400 Bad Request", code: "UNSUPPORTED" },
      "no HTTP/1.1 request",
    );
  }
  if (method !== "GET" && method !== "HEAD") {
    const headers: [string, string][] = [["Allow", "GET, HEAD"]];
    const kind = { status: "405 Method Not Allowed", code: "UNSUPPORTED", headers };
    throw new MirrorError(kind, "this mirror is read-only");
  }
  const isHead = method === "HEAD";
  const [path = "", query = ""] = target.split("?", 2);
  if (/^\/v2\/?$/.test(path)) return { isHead, kind: "version", repository: "", name: "" };
  const [, part, kind, name = ""] = /^\/v2\/(.+)\/(manifests|blobs)\/([^/]+)$/.exec(path) ?? [];
  if (part === undefined) {
    const what = "this mirror has only manifests and blobs";
    throw new MirrorError({ status: "404 Not Found", code: "UNSUPPORTED" }, what);
  }
  const registry = new URLSearchParams(query).get("ns") || "docker.io";
  const digest = decoded(name); // clients may escape its colon
  const repository = repositoryOf(registry, part);
  return { isHead, kind: kind as "manifests" | "blobs", repository, name: digest };
}

function decoded(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** @throws MirrorError unless both are as in image names. */
function repositoryOf(registry: string, part: string): string {
  try {
    const { domain, path } = parseReference(`${registry}/${part}:latest`);
    // Without a dot the registry's name would have been parsed as a folder of docker.io.
    if (domain === registry || registry === "index.docker.io") return `${domain}/${path}`;
  } catch {
    // refused below
  }
  throw new MirrorError({ status: "400 Bad Request", code: "NAME_INVALID" }, "no repository name");
}

/** Bytes from `from` up to, not including, `to`. */
export type ByteRange = { from: number; to: number };

/**
 * Parses a Range header. undefined: the whole content, as for several ranges, which a server may ignore (RFC
 * 9110, 14.2). @throws MirrorError for a range beyond the end.
 */
export function parseRange(header: string | undefined, size: number): ByteRange | undefined {
  const [, first = "", last = ""] = /^bytes=(\d*)-(\d*)$/.exec(header?.trim() ?? "") ?? [];
  if (first === "" && last === "") return undefined;
  const from = first === "" ? Math.max(0, size - Number(last)) : Number(first);
  const to = first === "" || last === "" ? size : Math.min(size, Number(last) + 1);
  if (from < to) return { from, to };
  const headers: [string, string][] = [["Content-Range", `bytes */${size}`]];
  const kind = { status: "416 Range Not Satisfiable", code: "SIZE_INVALID", headers };
  throw new MirrorError(kind, `it has ${size} bytes`);
}
