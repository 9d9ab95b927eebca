// The root file system of pause containers that need no image: one program of 300 bytes.
import { chmod, mkdir, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { CriError } from "../base/errors.ts";

/** By node:process's arch, in base64: what pause_x86_64.s and pause_aarch64.s become. */
const programs: Record<string, string[]> = {
  x64: [
    "f0VMRgIBAQAAAAAAAAAAAAIAPgABAAAAuABAAAAAAABAAAAAAAAAAAAAAAAAAAAAAAAAAEAAOAACAEAAAAAA",
    "AAEAAAAFAAAAAAAAAAAAAAAAAEAAAAAAAAAAQAAAAAAAJAEAAAAAAAAkAQAAAAAAAAAQAAAAAAAAUeV0ZAYA",
    "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAEAAAAAAAAAACQAEAAAAAALgOAAAA",
    "Mf9IjTXq////MdJBuggAAAAPBYXAdUS4PQAAAEjHx/////8x9roBAABARTHSDwWFwH/kuIAAAABIjT20////",
    "MfYx0kG6CAAAAA8Fg/gRdMeD+Px03jH/hcB5Bb8BAAAAuOcAAAAPBQ==",
  ],
  arm64: [
    "f0VMRgIBAQAAAAAAAAAAAAIAtwABAAAAuABAAAAAAABAAAAAAAAAAAAAAAAAAAAAAAAAAEAAOAACAEAAAAAA",
    "AAEAAAAFAAAAAAAAAAAAAAAAAEAAAAAAAAAAQAAAAAAAOAEAAAAAAAA4AQAAAAAAAAAAAQAAAAAAUeV0ZAYA",
    "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAEAAAAAAAAAACQAEAAAAAAAAAgNKh",
    "//8QAgCA0gMBgNLoEIDSAQAA1OACALUAAICSAQCA0gIAqFJCAAAyAwCA0ogggNIBAADUHwAA8Qz//1TA/f8Q",
    "AQCA0gIAgNIDAYDSKBGA0gEAANQfRADxAP7/VB8QALHg/v9UHwAA8QAAgNJKAABUIACA0sgLgNIBAADU",
  ],
};

/** A pause image's configuration, for this root. It needs no right to anything. */
export const pauseImage = { Entrypoint: ["/pause"], User: "65535:65535" };

/** The executable. @throws CriError UNIMPLEMENTED for an architecture that has none. */
export function pauseProgram(arch: string): Uint8Array {
  const program = programs[arch];
  if (program !== undefined) return Buffer.from(program.join(""), "base64");
  throw new CriError(
    "UNIMPLEMENTED",
    `there is no built-in pause program for ${arch}: set pod-sandbox-image`,
  );
}

/**
 * Makes the root in the folder, a pod's own, and returns its path. It is on the disk: many nodes let
 * nothing be executed on the tmpfs of /run.
 */
export async function makePauseRootfs(folder: string): Promise<string> {
  const program = pauseProgram(process.arch);
  // Where mounts go; else each runtime would make them here.
  for (const name of ["dev", "etc", "proc", "sys"]) {
    await mkdir(join(folder, name), { recursive: true, mode: 0o755 });
  }
  for (const name of ["hosts", "hostname", "resolv.conf"]) {
    await writeFile(join(folder, "etc", name), "", { mode: 0o644 });
  }
  const path = join(folder, "pause");
  await writeFile(path, program);
  for (const one of [folder, path]) await chmod(one, 0o555); // whatever the umask
  return folder;
}
