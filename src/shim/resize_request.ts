// Encodes the request for a terminal's size (ResizePty).
import { encodeMessage } from "../base/protobuf.ts";
import { task } from "../proto/task.js";

/** execId "": the container's own terminal. */
export function resizeRequest(
  { id, execId }: { id: string; execId: string },
  { columns, rows }: { columns: number; rows: number },
): Buffer {
  const size = { width: columns, height: rows };
  return encodeMessage(task.ResizePtyRequest, { id, exec_id: execId, ...size });
}
