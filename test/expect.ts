// What tests ask of failures.
import { CriError } from "../src/base/errors.ts";

/** The error of a call that must fail. */
export async function failure(call: Promise<unknown>): Promise<CriError> {
  let result: unknown;
  try {
    result = await call;
  } catch (error) {
    if (error instanceof CriError) return error;
    throw error;
  }
  throw new Error(`The call succeeded: ${JSON.stringify(result)}`);
}

/** A message's own fields, without the defaults that its class knows: as a kubelet sees it. */
export function own(message: object): object {
  return JSON.parse(JSON.stringify(message)) as object;
}
