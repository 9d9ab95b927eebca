// Makes an ext4 file system whose folders can be damaged as a power loss damages them.
import { execFileSync, spawnSync } from "node:child_process";
import * as fs from "node:fs";

const blockBytes = 1024;

/** Mounted at a folder until it is disposed of. */
export class DamagedDisk implements Disposable {
  readonly folder: string;
  readonly #image: string;

  constructor(folder: string) {
    this.folder = folder;
    this.#image = `${folder}.image`;
    fs.mkdirSync(folder);
    fs.closeSync(fs.openSync(this.#image, "w"));
    fs.truncateSync(this.#image, 256 << 20);
    run("mkfs.ext4", "-q", "-b", String(blockBytes), "-O", "^metadata_csum", this.#image);
    run("mount", "-o", "loop", this.#image, this.folder);
  }

  /** path: of an empty folder, relative. It then lists nothing, and rmdir(2) takes it for not empty. */
  damage(path: string): void {
    // Through the device, whose pages are those of the mounted file system.
    const device = run("findmnt", "-no", "SOURCE", this.folder).trim();
    run("sync", "-f", this.folder);
    const block = Number(run("debugfs", "-R", `blocks /${path}`, device));
    if (!(block > 0)) throw new Error(`debugfs finds no block of /${path}`);
    const file = fs.openSync(device, "r+");
    fs.writeSync(file, Buffer.alloc(blockBytes), 0, blockBytes, block * blockBytes);
    fs.closeSync(file);
  }

  [Symbol.dispose](): void {
    spawnSync("umount", [this.folder]);
    fs.rmSync(this.#image, { force: true });
    fs.rmdirSync(this.folder);
  }
}

function run(program: string, ...args: string[]): string {
  return execFileSync(program, args, { encoding: "utf8", stdio: ["ignore", "pipe", "pipe"] });
}
