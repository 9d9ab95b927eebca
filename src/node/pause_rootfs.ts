// Creates the root file system of the built-in pause container: one program of 300 bytes, no image.
import { chmod, mkdir, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { CriError } from "../base/errors.ts";

/** The assembled pause_x86_64.s and pause_aarch64.s in base64, by process.arch. */
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

/** The image configuration for this root; pause needs no privileges. */
export const pauseImage = { Entrypoint: ["/pause"], User: "65535:65535" };

/** Returns the executable. @throws CriError UNIMPLEMENTED for other architectures. */
export function pauseProgram(arch: string): Uint8Array {
  const program = programs[arch];
  if (program !== undefined) return Buffer.from(program.join(""), "base64");
  const message = `no built-in pause program for ${arch}: set pod-sandbox-image`;
  throw new CriError("UNIMPLEMENTED", message);
}

/**
 * Creates the root in a pod's folder and returns its path. The folder is on disk, because many nodes mount
 * /run noexec.
 */
export async function makePauseRootfs(folder: string): Promise<string> {
  const program = pauseProgram(process.arch);
  // Mount points; otherwise the runtime would create them.
  for (const name of ["dev", "etc", "proc", "sys"]) {
    await mkdir(join(folder, name), { recursive: true, mode: 0o755 });
  }
  for (const name of ["hosts", "hostname", "resolv.conf"]) {
    await writeFile(join(folder, "etc", name), "", { mode: 0o644 });
  }
  const path = join(folder, "pause");
  await writeFile(path, program);
  for (const one of [folder, path]) await chmod(one, 0o555); // regardless of the umask
  return folder;
}
