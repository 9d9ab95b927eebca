// Runs the unpack helper, `isulad-ts unpack native|overlay`: a child process of the daemon that performs the
// jobs of job_*.ts one after another (unpack_jobs.ts has the protocol).
// Decision: it is a separate process because only a chroot confines a hostile layer to its folder, because
// unpacking would block the daemon's event loop, and because its memory is freed when it exits. It
// downloads blobs itself, so that they do not pass through the daemon.
import * as fs from "node:fs";
import { createInterface } from "node:readline";
import { codeOf, CriError, messageOf } from "../base/errors.ts";
import { jsonText, trustedJsonValue } from "../base/json.ts";
import { Descriptor } from "../sys/descriptor.ts";
import { removeEngineOptions } from "../sys/engine_options.ts";
import { syncfs } from "../sys/path.ts";
import { killGroup, leadGroup } from "../sys/process.ts";
import { setUmask } from "../sys/umask.ts";
import { ChrootJail } from "./chroot_jail.ts";
import { asResourceExhausted } from "./disk_space.ts";
import { cloneLayer } from "./job_clone.ts";
import { copyLayers } from "./job_copy.ts";
import { inflateFile } from "./job_inflate.ts";
import { inheritAttributes } from "./job_inherit.ts";
import { packArchive } from "./job_pack.ts";
import { unpackLayer } from "./job_unpack.ts";
import { verifyLayer } from "./job_verify.ts";
import type { JobResults, UnpackAnswer, UnpackJob } from "./unpack_jobs.ts";
import { writeWhiteouts } from "./whiteouts.ts";

/** argv: the form in which this node's layers store whiteouts. */
export async function unpackMain(argv: string[]): Promise<number> {
  removeEngineOptions();
  leadGroup();
  setUmask(0); // the layers define the modes
  writeWhiteouts(argv[0] === "native" ? "native" : "overlay");
  const jail = new ChrootJail();
  const lines = createInterface({ input: process.stdin });
  lines.once("close", () => {
    // The daemon ended this helper, or died.
    killGroup(process.pid); // with processes that stream processors left behind
    process.exit(0);
  });
  for await (const line of lines) {
    const job = trustedJsonValue(line) as UnpackJob;
    send(await perform(job, jail).then((result) => ({ kind: "done", result }), failed));
  }
  return 0;
}

function send(answer: UnpackAnswer): void {
  fs.writeSync(1, `${jsonText(answer)}\n`);
}

async function perform(job: UnpackJob, jail: ChrootJail): Promise<JobResults[UnpackJob["kind"]]> {
  const onProgress = (bytes: number) => send({ kind: "progress", bytes });
  switch (job.kind) {
    case "unpack":
      return await unpackLayer(job, jail, onProgress).catch((error: unknown) => {
        throw withLayer(error, job.digest || job.diffId);
      });
    case "inherit":
      inheritAttributes(job);
      return undefined;
    case "clone":
      return cloneLayer(job);
    case "inflate":
      await inflateFile(job);
      return undefined;
    case "pack":
      await packArchive(job, jail, onProgress);
      return undefined;
    case "copy":
      await copyLayers(job);
      return undefined;
    case "verify":
      return verifyLayer(job, jail);
    case "sync": {
      using folder = Descriptor.openFolder(job.folder);
      syncfs(folder);
      return undefined;
    }
  }
}

function withLayer(error: unknown, digest: string): unknown {
  if (!(error instanceof CriError) || error.message.includes(digest)) return error;
  return new CriError(error.code, `layer ${digest}: ${error.message}`, { cause: error });
}

function failed(cause: unknown): UnpackAnswer {
  const error = asResourceExhausted(cause);
  return { kind: "failed", code: codeOf(error), message: messageOf(error) };
}
