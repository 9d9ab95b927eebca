// Exec and Attach as sessions of the stream server: the same streams, other ends.
import type { Wire } from "../sys/byte_stream.ts";
import type { Outcome, Serve, Wanted } from "./channels.ts";
import type { Session, Upgrade } from "./server.ts";
import { spdyChannels, spdyProtocols } from "./spdy_channels.ts";
import { websocketChannels, websocketProtocols } from "./websocket_channels.ts";

export function commandSession(
  kind: "exec" | "attach",
  { wanted, serve }: { wanted: Wanted; serve: Serve },
): Session {
  return {
    kind,
    spdy: spdyProtocols,
    websocket: websocketProtocols,
    async serve(wire: Wire, upgrade: Upgrade, hungUp: AbortSignal): Promise<void> {
      const open = upgrade.over === "spdy" ? spdyChannels : websocketChannels;
      const { channels, ended } = await open(wire, wanted, upgrade.protocol);
      // What is no SPDY or WebSocket ends the session too, though the connection may stand.
      const finished = new AbortController();
      ended.finally(() => finished.abort()).catch(() => {});
      const outcome: Outcome = await serve(channels, AbortSignal.any([hungUp, finished.signal]));
      if (!hungUp.aborted) await channels.finish(outcome);
    },
  };
}
