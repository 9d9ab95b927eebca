// Makes the stream server's sessions of Exec and Attach, which differ only in the command's end of the streams.
import type { Wire } from "../sys/byte_stream.ts";
import type { Serve, WantedStreams } from "./channels.ts";
import type { StreamSession, Upgrade } from "./server.ts";
import { spdyChannels, spdyProtocols } from "./spdy_channels.ts";
import { websocketChannels, websocketProtocols } from "./websocket_channels.ts";

export function commandSession(
  { kind, pod }: { kind: "exec" | "attach"; pod: string },
  wanted: WantedStreams,
  serve: Serve,
): StreamSession {
  return {
    pod,
    kind,
    spdy: spdyProtocols,
    websocket: websocketProtocols,
    async serve(wire: Wire, upgrade: Upgrade, hangup: AbortSignal): Promise<void> {
      const { protocol } = upgrade;
      const opened =
        upgrade.over === "spdy"
          ? await spdyChannels(wire, wanted, { protocol, hangup })
          : await websocketChannels(wire, wanted, protocol);
      using channels = opened.channels;
      const { ended } = opened;
      // A protocol error ends the session too, although the connection may stay open.
      const finished = new AbortController();
      ended.finally(() => finished.abort()).catch(() => {});
      const outcome = await serve(channels, AbortSignal.any([hangup, finished.signal]));
      if (!hangup.aborted) await channels.finish(outcome);
    },
  };
}
