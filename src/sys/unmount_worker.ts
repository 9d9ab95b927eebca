// Unmounts, as a thread of unmount_thread.ts, one file system after the other.
import { parentPort } from "node:worker_threads";
import { errnoOf, messageOf } from "../base/errors.ts";
import { unmount } from "./mount.ts";
import type { UnmountReply, UnmountRequest } from "./unmount_thread.ts";

parentPort!.on("message", ({ target, flags }: UnmountRequest) => {
  let reply: UnmountReply = {};
  try {
    unmount(target, flags);
  } catch (error) {
    reply = { code: errnoOf(error) ?? "EIO", message: messageOf(error) };
  }
  parentPort!.postMessage(reply);
});
