// Issues the URLs of Exec, Attach and PortForward, and owns the server behind them.
import { mkdirSync } from "node:fs";
import type { Log } from "../base/log.ts";
import type { MonitorClient } from "../monitor_client/client.ts";
import { NetnsSockets } from "../node/netns_sockets.ts";
import { Poller } from "../sys/poller.ts";
import { hostPort } from "../sys/socket_address.ts";
import type { Renewable, TlsFiles } from "../sys/tls_server.ts";
import { tunnel, WebSocketConnection } from "../sys/websocket.ts";
import { serveAttach, type AttachSession } from "./attach.ts";
import type { Serve } from "./channels.ts";
import { commandSession } from "./command_session.ts";
import { serveExec, type ExecSession } from "./exec.ts";
import type { StreamParts } from "./exec_io.ts";
import { localhost } from "./port_forward.ts";
import { forwardSpdy, portForwardProtocol } from "./port_forward_spdy.ts";
import { forwardWebSocket, portForwardChannelProtocols } from "./port_forward_websocket.ts";
import { StreamServer, type StreamSession } from "./server.ts";
import { startTlsFront, type TlsFront } from "./tls_front.ts";
import { removeTreeNow } from "../sys/remove_tree.ts";

export type StreamOptions = {
  monitor: MonitorClient;
  log: Log;
  /** For sockets and FIFOs; cleared at the start. */
  folder: string;
  /** On which the server listens. */
  address: string;
  /** 0: a free one. */
  port: number;
  idleMs: number;
  tls: TlsFiles | undefined;
};

/** addresses: localhost where they are absent. */
export type ForwardedPod = {
  /** Its id. */
  pod: string;
  netns: string | undefined;
  addresses?: string[];
  ports: number[];
};

export class Streams implements AsyncDisposable {
  readonly #parts: StreamParts;
  readonly #address: string;
  readonly #server: StreamServer;
  readonly #front: TlsFront | undefined;

  private constructor(
    parts: StreamParts,
    served: { address: string; server: StreamServer; front: TlsFront | undefined },
  ) {
    this.#parts = parts;
    this.#address = served.address;
    this.#server = served.server;
    this.#front = served.front;
  }

  /** @throws CriError FAILED_PRECONDITION if the port is in use or the certificate unusable. */
  static async open(options: StreamOptions): Promise<Streams> {
    const { monitor, folder, tls, address, port, log, idleMs } = options;
    removeTreeNow(folder);
    mkdirSync(folder, { mode: 0o700 });
    const poller = new Poller();
    const behind = { address: "127.0.0.1", port: 0 };
    const server = new StreamServer({ ...(tls ? behind : { address, port }), poller, log, idleMs });
    try {
      const front =
        tls && (await startTlsFront(tls, { address, port, to: server.port, log, what: "streams" }));
      return new Streams({ monitor, folder, poller }, { address, server, front });
    } catch (error) {
      await server[Symbol.asyncDispose]();
      poller[Symbol.dispose]();
      throw error;
    }
  }

  /** Counts the clients that have disconnected. */
  get served(): number {
    return this.#server.served;
  }

  get clients(): number {
    return this.#server.clients;
  }

  /** undefined without TLS. */
  get tls(): Renewable | undefined {
    return this.#front;
  }

  /** pod: the id of the container's pod. */
  exec(pod: string, session: ExecSession): string {
    const serve: Serve = (channels, hangup) => serveExec(this.#parts, session, channels, hangup);
    return this.#url(commandSession({ kind: "exec", pod }, session.wanted, serve));
  }

  /** pod: the id of the container's pod. */
  attach(pod: string, session: AttachSession): string {
    const serve: Serve = (channels, hangup) => serveAttach(this.#parts, session, channels, hangup);
    return this.#url(commandSession({ kind: "attach", pod }, session.wanted, serve));
  }

  /**
   * netns: path of the namespace from which the pod's addresses are reached; undefined: the host's. ports: for
   * clients whose protocol cannot name ports.
   */
  portForward({ pod, netns, addresses = localhost, ports }: ForwardedPod): string {
    const { poller, folder } = this.#parts;
    return this.#url({
      pod,
      kind: "portforward",
      spdy: [portForwardProtocol],
      websocket: [
        `SPDY/3.1+${portForwardProtocol}`,
        ...(ports.length > 0 ? portForwardChannelProtocols : []),
      ],
      serve: async (wire, { over, protocol }, hangup) => {
        using sockets = new NetnsSockets({ netns, folder });
        const options = { sockets, addresses, poller, hangup };
        if (over === "spdy") return await forwardSpdy(wire, options);
        if (portForwardChannelProtocols.includes(protocol)) {
          return await forwardWebSocket(wire, { ...options, ports, protocol });
        }
        const inside = tunnel(new WebSocketConnection(wire, "server"), () => wire.close());
        await forwardSpdy(inside, options);
      },
    });
  }

  #url(session: StreamSession): string {
    const path = this.#server.offer(session);
    const scheme = this.#front === undefined ? "http" : "https";
    const { port } = this.#front ?? this.#server;
    return `${scheme}://${hostPort(this.#address, port)}${path}`;
  }

  /** Disconnects all clients: their commands end, containers continue. */
  async [Symbol.asyncDispose](): Promise<void> {
    this.#front?.[Symbol.dispose]();
    await this.#server[Symbol.asyncDispose]();
    this.#parts.poller[Symbol.dispose]();
  }
}
