// isulad.v1 VerifyImages: whether the layers still are what was unpacked.
import { toLong } from "../base/int64.ts";
import type { VerifiedLayer, VerifyImagesRequest } from "../proto/types.ts";
import type { Call, Context } from "./context.ts";

export async function verifyImages(
  context: Context,
  request: VerifyImagesRequest,
  call: Call,
  send: (layer: VerifiedLayer) => Promise<void>,
): Promise<void> {
  const options = { repair: request.repair === true, signal: call.signal };
  for await (const check of context.images.verify(request.image ?? "", options)) {
    const { chainId, images, state, differences, differencesCount, note } = check;
    const differences_count = toLong(differencesCount);
    await send({ chain_id: chainId, images, state, differences, differences_count, note });
  }
}
