// Binds the daemon's sockets: those of CRI (key hosts), that of containerd's API (key containerd-socket), and
// that of the registry mirror (key serve-blobs).
import * as grpc from "@grpc/grpc-js";
import { chmodSync, chownSync, lstatSync, mkdirSync, rmSync } from "node:fs";
import { dirname, join } from "node:path";
import { groupId } from "./base/config_host.ts";
import { pathOfSocket } from "./base/config_values.ts";
import { CriError, errnoOf, messageOf } from "./base/errors.ts";
import { liveFields } from "./base/live_fields.ts";
import { logFailure } from "./base/log.ts";
import type { Context } from "./cri/context.ts";
import { PodMarkers } from "./cri/pod_markers.ts";
import { createContainerdServer, createServer } from "./cri/server.ts";
import { readTextIfExists, writeFileAtomic } from "./sys/file.ts";
import { replaceStale } from "./sys/stale_socket.ts";

/** Calls under way may finish for so long at shutdown. */
const drainMs = 1_000;

/** Serves CRI; the stack ends it. */
export async function serve(context: Context, stack: AsyncDisposableStack): Promise<void> {
  const { hosts, group, socketUid } = context.config;
  const server = createServer(context);
  stack.defer(() => endServer(server));
  stack.defer(() => context.events.close(new CriError("UNAVAILABLE", "the daemon is ending")));
  const gid = group === "" ? undefined : groupId(group);
  for (const host of hosts) {
    const path = pathOfSocket(host);
    mkdirSync(dirname(path), { recursive: true });
    await replaceStale(path, "hosts");
    await bind(server, path, stack);
    // Until here only root could connect, because of the process's umask.
    if (gid !== undefined || socketUid !== 0) chownSync(path, socketUid, gid ?? 0);
    chmodSync(path, gid === undefined ? 0o600 : 0o660);
  }
}

/**
 * Serves containerd's API, for root only, before the daemon is ready: a kubelet connects once, when it starts.
 * Makes the pods' markers when it is ready. @throws CriError FAILED_PRECONDITION if the path exists, unless
 * it is the socket of an earlier daemon that was killed: containerd may own it.
 */
export async function serveContainerd(
  context: Context,
  stack: AsyncDisposableStack,
  ready: Promise<void>,
): Promise<void> {
  const { containerdSocket: path, state } = context.config;
  const record = join(state, "containerd-socket");
  const found = identityOf(path);
  if (found !== undefined) {
    if (found !== (await readTextIfExists(record))) throw taken(path);
    rmSync(path);
  }
  mkdirSync(dirname(path), { recursive: true });
  markPods(context, ready);
  const server = createContainerdServer(context, ready);
  stack.defer(() => endServer(server));
  await bind(server, path, stack);
  chmodSync(path, 0o600);
  await writeFileAtomic(record, identityOf(path)!);
}

/** Serves images to other nodes if serve-blobs is set. @throws CriError FAILED_PRECONDITION. */
export async function serveMirror(context: Context, stack: AsyncDisposableStack): Promise<void> {
  const { config, images, log } = context;
  const { serveBlobs: address, serveBlobsTlsCert: cert, serveBlobsTlsKey: key } = config;
  if (address === "") return;
  const rules = liveFields(config, {
    clients: "serveBlobsClients",
    repositories: "serveBlobsImages",
    allowsPrivate: "serveBlobsPrivate",
  });
  const tls = cert === "" ? undefined : { cert, key };
  const server = stack.use(await images.serve({ address, tls, rules, log: log.child("mirror") }));
  context.tlsServers.serveBlobs = server.tls;
}

/**
 * To be called before the server exists: its calls wait for `ready`, too, and must find the markers. No marker is made
 * before `ready`: start() would remove one for an early commit together with those of the earlier daemon.
 */
function markPods(context: Context, ready: Promise<void>): void {
  ready
    .then(() => {
      const podMarkers = new PodMarkers(context);
      context.podMarkers = podMarkers;
      podMarkers.start();
    })
    .catch(logFailure(context.log, "marking the pods for cAdvisor failed"));
}

/** Identifies the file at a path; undefined if there is none. */
function identityOf(path: string): string | undefined {
  try {
    const { dev, ino, birthtimeNs } = lstatSync(path, { bigint: true });
    return `${path} ${dev}:${ino} ${birthtimeNs}`;
  } catch (error) {
    if (errnoOf(error) === "ENOENT") return undefined;
    throw new CriError("FAILED_PRECONDITION", `cannot use socket ${path}: ${messageOf(error)}`);
  }
}

function taken(path: string): CriError {
  return new CriError(
    "FAILED_PRECONDITION",
    `containerd-socket ${path} exists, and no record tells that this daemon has made it: remove the file if nobody listens there, remove containerd if it is unused, or choose another path`,
  );
}

async function bind(server: grpc.Server, path: string, stack: AsyncDisposableStack): Promise<void> {
  await new Promise<void>((resolve, reject) => {
    const done = (error: Error | null) => (error === null ? resolve() : reject(error));
    server.bindAsync(`unix:${path}`, grpc.ServerCredentials.createInsecure(), done);
  });
  const made = identityOf(path);
  stack.defer(() => {
    if (identityOf(path) === made) rmSync(path, { force: true }); // otherwise another program's by now
  });
}

async function endServer(server: grpc.Server): Promise<void> {
  const forced = setTimeout(() => server.forceShutdown(), drainMs);
  await new Promise<void>((resolve) => server.tryShutdown(() => resolve()));
  clearTimeout(forced);
}
