// Recognizes a root file system whose "/" is closed to the container's user, as its image says: the user's programs fail
// with "permission denied" for every path, which does not tell why.
import { stat } from "node:fs/promises";
import { join } from "node:path";

type User = { uid: number; gid: number; groups: readonly number[] };

/**
 * Returns what closes the root of a mounted container; "" if the user may open it. dir: as for mountRootfs; owner: the
 * node's ids of the pod's root.
 */
export async function closedRootProblem(
  dir: string,
  { uid, gid, groups }: User,
  owner: { uid: number; gid: number } = { uid: 0, gid: 0 },
): Promise<string> {
  const root = await stat(join(dir, "rootfs")).catch(() => undefined);
  if (root === undefined || uid === 0) return ""; // root may open it by its capabilities
  const isGroup = [gid, ...groups].some((one) => one + owner.gid === root.gid);
  const bit = root.uid === uid + owner.uid ? 0o100 : isGroup ? 0o010 : 0o001;
  if ((root.mode & bit) !== 0) return "";
  const mode = (root.mode & 0o7777).toString(8).padStart(4, "0");
  return `the image's / has the mode ${mode}, so that user ${uid} can open nothing: build it with the mode 0755 for "./", its layers' entry for /`;
}
