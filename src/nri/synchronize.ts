// All pods and containers in as few messages as the transport allows.
import protobuf from "protobufjs/minimal.js";
import { CriError } from "../base/errors.ts";
import { encodeMessage } from "../base/protobuf.ts";
import { nri } from "../proto/nri.js";
import type { Container as NriContainer, PodSandbox as NriPod } from "../proto/nri_types.ts";
import { ttrpcBodyMax } from "../sys/ttrpc.ts";

const api = nri.pkg.api.v1alpha1;
/** For the service, the method and the fields around a message. */
const overheadBytes = 1024;

/** SynchronizeRequest's fields, as tags of protobuf: pods 1, containers 2, more 3. */
const podsTag = 10;
const containersTag = 18;
const moreField = Uint8Array.of(24, 1);

/**
 * Encoded SynchronizeRequests; all but the last say that more come. At least one, which may be empty.
 * @throws CriError RESOURCE_EXHAUSTED for a pod or container that fills more than a message.
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
      throw new CriError(
        "RESOURCE_EXHAUSTED",
        `a pod or container takes ${piece.length} bytes, and a message ${bytesMax}`,
      );
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
