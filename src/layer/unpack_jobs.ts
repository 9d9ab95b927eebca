// Defines the protocol between the daemon (unpack_pool.ts) and an unpack helper (unpack_helper.ts): a job is
// a JSON line on the helper's standard input, an answer a JSON line on its standard output.
// Decision: this is no wire format. A helper always runs the build of the process that starts it
// (runningProgram in base/build.ts), so kinds and fields may change with every build.
import type { ErrorCode } from "../base/errors.ts";
import type { ClonedLayer, CloneJob } from "./job_clone.ts";
import type { CopyJob } from "./job_copy.ts";
import type { InflateJob } from "./job_inflate.ts";
import type { InheritJob } from "./job_inherit.ts";
import type { PackJob } from "./job_pack.ts";
import type { UnpackLayerJob, UnpackResult } from "./job_unpack.ts";
import type { Differences, VerifyJob } from "./job_verify.ts";

export type UnpackJob =
  | UnpackLayerJob
  | InheritJob
  | CloneJob
  | InflateJob
  | PackJob
  | CopyJob
  | VerifyJob
  | { kind: "sync"; folder: string };

/** The result of each kind of job. */
export type JobResults = {
  unpack: UnpackResult;
  inherit: undefined;
  clone: ClonedLayer;
  inflate: undefined;
  pack: undefined;
  copy: undefined;
  verify: Differences;
  sync: undefined;
};

export type UnpackAnswer =
  | { kind: "progress"; bytes: number }
  | { kind: "done"; result: JobResults[UnpackJob["kind"]] }
  | { kind: "failed"; code: ErrorCode; message: string };
