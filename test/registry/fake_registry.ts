// Runs a registry that misbehaves on request, on a free port of loopback.
import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import { createServer as createTlsServer } from "node:https";
import type { Signed } from "../certificates.ts";
import { descriptor, type Blob, type TestImage } from "../image_maker.ts";

export type Handler = (request: IncomingMessage, response: ServerResponse, url: URL) => boolean;

type At = { host?: string; port?: number; tls?: Signed };

export class FakeRegistry implements AsyncDisposable {
  readonly #server: Server;
  readonly requests: Pick<Required<IncomingMessage>, "method" | "url" | "headers">[] = [];
  readonly #files = new Map<string, Blob>();
  /** Answers a request itself when it returns true. */
  intercept: Handler = () => false;

  readonly #protocol: string;

  private constructor(tls: Signed | undefined) {
    const serve = (request: IncomingMessage, response: ServerResponse) =>
      this.#serve(request, response);
    this.#server = tls === undefined ? createServer(serve) : createTlsServer(tls, serve);
    this.#protocol = tls === undefined ? "http" : "https";
  }

  static async start({ host = "127.0.0.1", port = 0, tls }: At = {}): Promise<FakeRegistry> {
    const registry = new FakeRegistry(tls);
    await new Promise<void>((resolve) => registry.#server.listen({ host, port }, resolve));
    return registry;
  }

  get host(): string {
    const { address, port } = this.#server.address() as { address: string; port: number };
    return `${address}:${port}`;
  }

  get url(): string {
    return `${this.#protocol}://${this.host}`;
  }

  paths(): string[] {
    return this.requests.map(({ url }) => url);
  }

  put(repository: string, tag: string, image: TestImage): void {
    this.putManifest(repository, tag, image.manifest);
    for (const part of [image.config, ...image.layers]) this.putBlob(repository, part.digest, part);
  }

  putManifest(repository: string, tag: string, manifest: Blob): void {
    this.#files.set(`/v2/${repository}/manifests/${tag}`, manifest);
    this.#files.set(`/v2/${repository}/manifests/${manifest.digest}`, manifest);
  }

  putBlob(repository: string, digest: string, part: Blob): void {
    this.#files.set(`/v2/${repository}/blobs/${digest}`, part);
  }

  file(path: string): Blob | undefined {
    return this.#files.get(path);
  }

  #serve(request: IncomingMessage, response: ServerResponse): void {
    const url = new URL(request.url ?? "/", this.url);
    const { method = "", headers } = request;
    this.requests.push({ method, url: url.pathname + url.search, headers });
    if (this.intercept(request, response, url)) return;
    const file = this.#files.get(url.pathname);
    if (file === undefined) {
      response.writeHead(404, { "content-type": "application/json" });
      response.end('{"errors":[{"code":"MANIFEST_UNKNOWN","message":"unknown here"}]}');
      return;
    }
    sendFile(response, file, request.headers.range);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#server.closeAllConnections();
    await new Promise((resolve) => this.#server.close(resolve));
  }
}

export function sendFile(response: ServerResponse, file: Blob, wanted = ""): void {
  const start = Number(/^bytes=(\d+)-$/.exec(wanted)?.[1] ?? 0);
  const range = `bytes ${start}-${file.size - 1}/${file.size}`;
  response.writeHead(start > 0 ? 206 : 200, {
    "content-type": file.mediaType,
    "content-length": file.size - start,
    ...(start > 0 && { "content-range": range }),
  });
  response.end(file.bytes.subarray(start));
}

/** A manifest whose layers' descriptors are changed. */
export function withLayers(image: TestImage, layers: object[]): object {
  return { schemaVersion: 2, config: descriptor(image.config), layers };
}
