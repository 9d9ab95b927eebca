// Runs the programs that decide whether an image may be pulled, by the contract of containerd's image
// verifiers (docs/image-verification.md there, plugin "bindir").
// Decision: unlike containerd, a folder with more programs than the limit refuses every pull: a verifier that
// is left out cannot refuse.
import { constants, existsSync, readdirSync, statSync, writeSync } from "node:fs";
import { join } from "node:path";
import { throwIfAborted } from "../base/abort.ts";
import { CriError, codeOf, errnoOf, messageOf, type ErrorCode } from "../base/errors.ts";
import { jsonText } from "../base/json.ts";
import type { Log } from "../base/log.ts";
import { printable, shorten } from "../base/text.ts";
import { manifestTypeOf } from "./manifest.ts";
import { authFileText } from "../registry/auth_file.ts";
import type { PullSession } from "../registry/pull_session.ts";
import { Descriptor } from "../sys/descriptor.ts";
import { killGroup } from "../sys/process.ts";
import { type RunOptions, type RunResult, run } from "../sys/run.ts";

export type Verification = {
  folder: string;
  /** Refuses every image while the folder is absent or empty. */
  isRequired: boolean;
  verifiersMax: number;
  /** For each program. */
  timeoutMs: number;
  log: Log;
};

/** An image whose name is resolved; top: the index or manifest that the name stands for. */
export type ResolvedImage = {
  name: string;
  top: { bytes: Uint8Array; digest: string };
  session: PullSession;
};

const descriptorType = "application/vnd.oci.descriptor.v1+json";
/** As in containerd. */
const reasonBytesMax = 32 << 10;
const floodBytes = 1 << 20;
const shownBytesMax = 1_000;
/** Exit codes of a shell's child, and of run(), that a signal ended. */
const killedExitCodes = { above: 128, most: 128 + 64 };

/**
 * Runs every program of the folder, by name, until one refuses.
 * @throws CriError UNKNOWN whose message begins with the word that a kubelet makes a reason of; CANCELLED or
 * DEADLINE_EXCEEDED when the signal aborts.
 */
export async function verifyImage(
  image: ResolvedImage,
  verification: Verification,
  signal: AbortSignal,
): Promise<void> {
  const { name } = image;
  const { folder, log } = verification;
  try {
    const programs = verifiersIn(verification);
    const credentials = authFileText(image.session);
    for (const program of programs) {
      const path = join(folder, program);
      if (existsSync(path)) refuseWritable(path); // else a link to nowhere, which cannot be run
      const reason = await verdict(path, image, { ...verification, credentials, signal });
      log.debug("image accepted", { image: name, digest: image.top.digest, program, reason });
    }
  } catch (error) {
    throwIfAborted(`verification of ${name}`, signal);
    throw validationFailed(image, error);
  }
}

/**
 * A kubelet compares the beginning of the text (k8s.io/cri-api, pkg/errors: ErrSignatureValidationFailed), from
 * which it removes the gRPC code only if that is UNKNOWN (k8s.io/cri-client, remote_image.go).
 */
function validationFailed({ name, top }: ResolvedImage, cause: unknown): CriError {
  const subject = `${name} with the digest ${top.digest}`;
  const message = `SignatureValidationFailed: ${subject} is not pulled: ${messageOf(cause)}`;
  return new CriError("UNKNOWN", message, { cause });
}

function verifiersIn({ folder, isRequired, verifiersMax }: Verification): string[] {
  let names: string[] = [];
  try {
    names = readdirSync(folder).sort();
  } catch (error) {
    if (errnoOf(error) !== "ENOENT") throw error;
  }
  if (names.length > 0) refuseWritable(folder);
  if (names.length === 0 && isRequired) {
    const hint = "install a verifier there, or unset image-verifier-required";
    throw new Error(`image-verifier-dir ${folder} is absent or empty: ${hint}`);
  }
  if (names.length > verifiersMax) {
    const hint = "remove some, or raise max-verifiers";
    throw new Error(`${folder} has ${names.length} files, over ${verifiersMax}: ${hint}`);
  }
  return names;
}

/** Whoever can change a verifier runs programs as root, and decides about images. @throws Error. */
function refuseWritable(path: string): void {
  const writableByOthers = 0o002;
  if ((statSync(path).mode & writableByOthers) === 0) return;
  throw new Error(`every user of this node may write to ${path}: chmod o-w ${path}`);
}

type Parts = Verification & { credentials: string | undefined; signal: AbortSignal };

/** Returns the reason for which the program accepts the image. @throws Error of one that does not. */
async function verdict(path: string, { name, top }: ResolvedImage, parts: Parts): Promise<string> {
  const argv = [path, "-name", name, "-digest", top.digest, "-stdin-media-type", descriptorType];
  using credentials = parts.credentials === undefined ? undefined : secretFile(parts.credentials);
  const { pid, exitCode, stdout, stderr } = await runVerifier(argv, {
    input: jsonText(await descriptorOf(top)),
    env: {
      ...(process.env as Record<string, string>),
      ...(credentials && { REGISTRY_AUTH_FILE: inheritedPath }),
    },
    cwd: "/",
    signal: AbortSignal.any([parts.signal, AbortSignal.timeout(parts.timeoutMs)]),
    maxOutputBytes: reasonBytesMax,
    floodBytes,
    ...(credentials && { inherited: credentials }),
  });
  killGroup(pid); // what it left behind
  const [reason, problem] = [stdout, stderr].map((text) => shown(text)) as [string, string];
  if (exitCode === 0) return reason;
  const wasKilled = exitCode > killedExitCodes.above && exitCode <= killedExitCodes.most;
  const how = wasKilled ? "killed by a signal" : `exit code ${exitCode}`;
  throw new Error(`${path} refuses it (${how}): ${reason || problem || "without a reason"}`);
}

function shown(output: string): string {
  return shorten(printable(output.trim()), shownBytesMax);
}

async function runVerifier(argv: string[], options: RunOptions): Promise<RunResult> {
  try {
    return await run(argv, options);
  } catch (error) {
    const hints: Partial<Record<ErrorCode, string>> = {
      DEADLINE_EXCEEDED: "per-verifier-timeout is its limit",
      RESOURCE_EXHAUSTED: "its standard output is for the reason",
      INTERNAL:
        "each file of image-verifier-dir must be executable, a script with an interpreter in its first line",
      NOT_FOUND: "it is a link to nowhere, or its interpreter is missing",
    };
    const hint = hints[codeOf(error)];
    const message = `${messageOf(error)}${hint === undefined ? "" : `; ${hint}`}`;
    throw new Error(message, { cause: error });
  }
}

async function descriptorOf({ bytes, digest }: ResolvedImage["top"]): Promise<object> {
  return { mediaType: await manifestTypeOf(bytes, digest), digest, size: bytes.length };
}

/** Path of descriptor 3, for the program that has it. */
const inheritedPath = "/proc/self/fd/3";
/** open(2): a file without a name. */
const O_TMPFILE = 0o20_000_000 | constants.O_DIRECTORY;

/** Makes a file in memory, without a name. */
function secretFile(text: string): Descriptor {
  using stack = new DisposableStack();
  const file = stack.use(Descriptor.open("/dev/shm", O_TMPFILE | constants.O_RDWR, 0o600));
  writeSync(file.fd, text, 0); // at a position, which leaves the shared offset at 0, where the program begins to read
  stack.move();
  return file;
}
