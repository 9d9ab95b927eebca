// Says what to try next when a pull has failed: a tag that the node has, or how to find the registry's fault.
import { codeOf, CriError, messageOf } from "../base/errors.ts";
import type { Client } from "./client.ts";

const namesMax = 3;

/** Runs a pull and returns its result; appends advice to the message of an error. */
export async function withAdvice<T>(
  client: Client,
  image: string,
  pulling: Promise<T>,
): Promise<T> {
  try {
    return await pulling;
  } catch (error) {
    throw await advised(client, image, error);
  }
}

async function advised(client: Client, image: string, error: unknown): Promise<CriError> {
  const code = codeOf(error);
  if (!isOfRegistry(messageOf(error))) {
    return new CriError(code, messageOf(error), { cause: error });
  }
  // Without the daemon there is no list, and the error has said so.
  const { images } = await client.ListImages({}).catch(() => ({ images: [] }));
  const names = images.flatMap(({ repo_tags }) => repo_tags ?? []);
  const message = `${messageOf(error)}; ${pullAdvice(image, names)}`;
  return new CriError(code, message, { cause: error });
}

/** True for a request that no registry has answered as it should, in the words of registry/failover.ts. */
export function isOfRegistry(message: string): boolean {
  return /\bcannot get /.test(message);
}

/** present: the names of the node's images. Pure. */
export function pullAdvice(image: string, present: readonly string[]): string {
  const wanted = repositoryOf(image);
  const others = present.filter((name) => {
    const repository = repositoryOf(name);
    const isSame = repository === wanted || repository.endsWith(`/${wanted}`);
    return isSame && name !== image && !name.endsWith(`/${image}`);
  });
  if (others.length > 0) return `this node has ${others.slice(0, namesMax).join(", ")}`;
  return `isulad-ts registry check ${image} finds out why, isulad-ts load FILE works without a registry`;
}

/** Drops tag and digest; a colon before a slash belongs to a port. */
function repositoryOf(image: string): string {
  return image.split("@", 1)[0]!.replace(/:[^/:]*$/, "");
}
