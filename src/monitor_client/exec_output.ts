// Makes the response of ExecSync from output that the monitor has left in a file, since it is too large for memory.
import { open, rm } from "node:fs/promises";
import { join } from "node:path";
import protobuf from "protobufjs/minimal.js";
import type { InFile } from "../monitor/protocol.ts";
import { SlicedResponse } from "../base/sliced_response.ts";

const sliceBytes = 64 << 10;

/** Returns the folder with the files of large output. graph: the daemon's; a tmpfs would take memory. */
export function outputsFolder(graph: string): string {
  return join(graph, "outputs");
}

/** Opens the output, and removes its file: it lasts until the response is disposed of. */
export async function execOutput(
  path: string,
  { stdoutBytes, stderrFrom, stderrBytes }: InFile,
  exitCode: number,
): Promise<SlicedResponse> {
  const file = await open(path, "r");
  try {
    await rm(path);
  } catch (error) {
    await file.close();
    throw error;
  }
  const heads = {
    stdout: header((writer) => writer.uint32(bytesField(1)).uint32(stdoutBytes)),
    stderr: header((writer) => writer.uint32(bytesField(2)).uint32(stderrBytes)),
    exitCode: header((writer) => writer.uint32(3 << 3).int32(exitCode)),
  };
  async function* slices(): AsyncGenerator<Uint8Array> {
    const buffer = Buffer.allocUnsafeSlow(sliceBytes);
    yield heads.stdout;
    yield* read(0, stdoutBytes, buffer);
    yield heads.stderr;
    yield* read(stderrFrom, stderrBytes, buffer);
    yield heads.exitCode;
  }
  async function* read(from: number, bytes: number, buffer: Buffer): AsyncGenerator<Uint8Array> {
    for (let at = 0; at < bytes;) {
      const wanted = Math.min(buffer.length, bytes - at);
      const { bytesRead } = await file.read(buffer, 0, wanted, from + at);
      if (bytesRead === 0) throw new Error(`${path} has lost its end: ${at} of ${bytes} bytes`);
      yield buffer.subarray(0, bytesRead);
      at += bytesRead;
    }
  }
  const headBytes = Object.values(heads).reduce((sum, { length }) => sum + length, 0);
  return new SlicedResponse(headBytes + stdoutBytes + stderrBytes, slices(), () => file.close());
}

/** The tag of a field of bytes: wire type 2. */
function bytesField(number: number): number {
  return (number << 3) | 2;
}

function header(write: (writer: protobuf.Writer) => protobuf.Writer): Uint8Array {
  return write(protobuf.Writer.create()).finish();
}
