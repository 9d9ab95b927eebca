// Fakes and helpers that unit tests share.
import { messageOf } from "../../src/base/errors.ts";

/** Returns the message that a promise rejects with. @throws when it resolves. */
export async function failureOf(promise: Promise<unknown>): Promise<string> {
  const value = await promise.catch((error: unknown) => ({ message: messageOf(error) }));
  if (value instanceof Object && "message" in value) return String(value.message);
  throw new Error("expected a rejection");
}
