// Runs an HTTP proxy for tests on a free port of loopback: it forwards requests, opens tunnels, requires a
// password, and resolves host names that no name server has.
import { createServer, request, type IncomingMessage, type Server } from "node:http";
import { connect, type Socket } from "node:net";

const user = "proxy-user";
const password = "proxy-s3cret";

export class TestProxy implements AsyncDisposable {
  readonly #server: Server;
  /** Name → port of loopback. */
  readonly #hosts: Map<string, number>;
  /** "GET http://name/path" or "CONNECT name:port", in order. */
  readonly requests: string[] = [];

  private constructor(hosts: Record<string, number>) {
    this.#hosts = new Map(Object.entries(hosts));
    this.#server = createServer((incoming, response) => {
      if (!this.#allows(incoming)) return void response.writeHead(407).end();
      const url = new URL(incoming.url!);
      const options = { port: this.#hosts.get(url.hostname), path: url.pathname + url.search };
      const { method, headers } = incoming;
      const onward = request({ host: "127.0.0.1", ...options, method, headers }, (answer) => {
        response.writeHead(answer.statusCode!, answer.headers);
        answer.pipe(response);
      });
      onward.on("error", () => response.destroy());
      incoming.pipe(onward);
    });
    this.#server.on("connect", (incoming: IncomingMessage, socket: Socket, head: Buffer) => {
      const port = this.#hosts.get(incoming.url!.split(":")[0]!);
      if (!this.#allows(incoming)) return void socket.end("HTTP/1.1 407 No\r\n\r\n");
      if (port === undefined) return void socket.end("HTTP/1.1 502 No such host\r\n\r\n");
      const onward = connect(port, "127.0.0.1", () => {
        socket.write("HTTP/1.1 200 OK\r\n\r\n");
        onward.write(head);
        onward.pipe(socket).pipe(onward);
      });
      onward.on("error", () => socket.destroy());
      socket.on("error", () => onward.destroy());
    });
  }

  static async start(hosts: Record<string, number>): Promise<TestProxy> {
    const proxy = new TestProxy(hosts);
    await new Promise<void>((resolve) => proxy.#server.listen(0, "127.0.0.1", resolve));
    return proxy;
  }

  get host(): string {
    return `127.0.0.1:${(this.#server.address() as { port: number }).port}`;
  }

  /** The proxy's URL with user and password. */
  get url(): string {
    return `http://${user}:${password}@${this.host}`;
  }

  #allows({ method, url, headers }: IncomingMessage): boolean {
    this.requests.push(`${method} ${url}`);
    const wanted = `Basic ${Buffer.from(`${user}:${password}`).toString("base64")}`;
    return headers["proxy-authorization"] === wanted;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#server.closeAllConnections();
    await new Promise((resolve) => this.#server.close(resolve));
  }
}
