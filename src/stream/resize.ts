// Sets a terminal to its client's size, directly or by the shim that holds it.
import type { MonitorClient } from "../monitor_client/client.ts";
import type { ByteStream } from "../sys/byte_stream.ts";
import { setTerminalSize } from "../sys/terminal.ts";
import type { Channels, Size } from "./channels.ts";

export type Resize = (size: Size) => Promise<void>;

/** Limit for a shim's answer. */
const resizeMs = 10_000;

/** Sets the sizes that a client sends; goes on after a failure: a shim may be busy. @throws if it sends no size. */
export async function followSizes({ resizes }: Channels, resize: Resize): Promise<void> {
  for await (const size of resizes) await resize(size).catch(() => {});
}

export function resizeTerminal(terminal: ByteStream): Resize {
  return async (size) => {
    if (!terminal.closed) setTerminalSize(terminal.descriptor, size);
  };
}

/** key: of the exec; "": the container's own terminal. */
export function resizeByShim(
  monitor: MonitorClient,
  { id, key }: { id: string; key: string },
): Resize {
  return async (size) => {
    const { resizeRequest } = await import("../shim/resize_request.ts");
    const payload = resizeRequest({ id, execId: key }, size).toString("base64");
    await monitor.call("task", { id, method: "ResizePty", payload, timeoutMs: resizeMs });
  };
}
