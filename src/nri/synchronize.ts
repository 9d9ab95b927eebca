// Packs all pods and containers into as few SynchronizeRequests as the transport's message limit allows.
import protobuf from "protobufjs/minimal.js";
import { CriError } from "../base/errors.ts";
import { encodeMessage } from "../base/protobuf.ts";
import { nri } from "../proto/nri.js";
import type { Container as NriContainer, PodSandbox as NriPod } from "../proto/nri_types.ts";
import { ttrpcBodyMax } from "../sys/ttrpc_wire.ts";

const api = nri.pkg.api.v1alpha1;
/** Reserve for the service, the method and the fields around a message. */
const overheadBytes = 1024;

/** Protobuf tags of SynchronizeRequest's fields: pods 1, containers 2, more 3. */
const podsTag = 10;
const containersTag = 18;
const moreField = Uint8Array.of(24, 1);

/**
 * Returns at least one encoded SynchronizeRequest, which may be empty; all but the last have `more` set.
 * @throws CriError RESOURCE_EXHAUSTED for a pod or container that exceeds a message.
 */
export function synchronizeMessages(
  pods: readonly NriPod[],
  containers: readonly NriContainer[],
  bytesMax = ttrpcBodyMax - overheadBytes,
): Uint8Array[] {
  const pieces = [
    ...pods.map((pod) => field(podsTag, encodeMessage(api.PodSandbox, pod))),
    ...containers.map((one) => field(containersTag, encodeMessage(api.Container, one))),
  ];
  const messages: Uint8Array[][] = [[]];
  let bytes = 0;
  for (const piece of pieces) {
    if (piece.length > bytesMax) {
      const text = `a pod or container has ${piece.length} bytes, more than the ${bytesMax} of a message`;
      throw new CriError("RESOURCE_EXHAUSTED", text);
    }
    if (bytes + piece.length > bytesMax) {
      messages.at(-1)!.push(moreField);
      messages.push([]);
      bytes = 0;
    }
    messages.at(-1)!.push(piece);
    bytes += piece.length;
  }
  return messages.map((parts) => Buffer.concat(parts));
}

function field(tag: number, bytes: Uint8Array): Uint8Array {
  return protobuf.Writer.create().uint32(tag).bytes(bytes).finish();
}
