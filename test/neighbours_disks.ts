// Provides the bad neighbours of test/neighbours.ts whose log cannot be written: on a full disk with one line or with
// many, on a file that must not be changed, and on a file system that has become read-only.
import { execFileSync, spawnSync } from "node:child_process";
import { closeSync, openSync, rmSync, truncateSync, writeSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { toLong } from "../src/base/int64.ts";
import { MNT_DETACH, unmount } from "../src/sys/mount.ts";
import { until } from "./expect.ts";
import { type Attack, type Attacker, folderFor, podAt, type Stage } from "./neighbours_stage.ts";
import { bytesWritten } from "./neighbours_use.ts";

/** An ext4 file system of 32 MiB in a file, mounted at a folder. */
class SmallDisk implements Disposable {
  readonly folder: string;
  readonly #image: string;

  constructor(folder: string) {
    this.folder = folder;
    this.#image = `${folder}.image`;
    closeSync(openSync(this.#image, "w"));
    truncateSync(this.#image, 32 << 20);
    execFileSync("mkfs.ext4", ["-q", "-m", "0", this.#image]);
    execFileSync("mount", ["-o", "loop", this.#image, folder]);
  }

  get #filler(): string {
    return join(this.folder, "filler");
  }

  fill(): void {
    for (const size of [1 << 20, 4096, 1]) {
      const fd = openSync(this.#filler, "a");
      const bytes = Buffer.alloc(size);
      try {
        while (writeSync(fd, bytes) === size);
      } catch {
        // There is no more room.
      }
      closeSync(fd);
    }
  }

  makeRoom(): void {
    rmSync(this.#filler, { force: true });
  }

  [Symbol.dispose](): void {
    spawnSync("chattr", ["-R", "-i", this.folder], { stdio: "ignore" });
    unmount(this.folder, MNT_DETACH);
    rmSync(this.#image, { force: true });
  }
}

type Trouble = {
  begin(disk: SmallDisk, logs: string[]): void;
  end(disk: SmallDisk, logs: string[]): void;
};

const fullDisk: Trouble = { begin: (disk) => disk.fill(), end: (disk) => disk.makeRoom() };
const immutable: Trouble = {
  begin: (_, logs) => execFileSync("chattr", ["+i", ...logs]),
  end: (_, logs) => execFileSync("chattr", ["-i", ...logs]),
};
/** The file system itself, as after an error of the disk. */
const readOnly: Trouble = {
  begin: ({ folder }) => execFileSync("mount", ["-o", "remount,abort", folder]),
  end: () => {},
};

/** Writes one line when it is told to, and then no more. */
const oneLine = "until [ -e /tmp/go ]; do usleep 50000; done; echo one line; sleep 1000000";
/** Writes and counts its lines; ends at once with 0 on SIGTERM. */
const chatty = `trap 'exit 0' TERM
until [ -e /tmp/go ]; do usleep 50000; done
i=0; while true; do i=$((i+1)); echo "${"x".repeat(200)} $i"; echo $i > /tmp/count; done`;

/** In which a workload that goes on writes some lines, however busy the machine is. */
const goesOnMs = 2_000;
const stopMsMax = 3_000;
const writtenMax = 100 << 20;

type Kind = { name: string; about: string; command: string; trouble: Trouble };

/** A container whose log meets trouble. A chatty one must go on, and must hear its SIGTERM. */
function troubled({ name, about, command, trouble }: Kind): Attack {
  const prepare = async (stage: Stage): Promise<Attacker> => {
    const { daemon } = stage;
    const disk = new SmallDisk(folderFor(stage, name));
    const pod = await podAt(stage, name, join(disk.folder, "logs"));
    const id = await daemon.run(pod.id, pod.config, command);
    const log = (await daemon.status(id)).log_path;
    const count = async () => {
      let text = "";
      // It may just be written.
      await until("it has counted", async () => {
        text = (await daemon.exec(id, "cat /tmp/count")).stdout;
        return text !== "";
      });
      return Number(text);
    };
    const written = bytesWritten(stage.pids);
    let isBegun = false;
    const check = async () => {
      const faults: string[] = [];
      const bytes = bytesWritten(stage.pids) - written;
      if (bytes > writtenMax) faults.push(`${bytes >> 20} MiB were written to disks`);
      if (command === oneLine) return { faults };
      const lines = await count();
      await sleep(goesOnMs);
      if ((await count()) === lines) faults.push(`the workload stands still after ${lines} lines`);
      const start = performance.now();
      await daemon.client.StopContainer({ container_id: id, timeout: toLong(3) });
      const stopMs = performance.now() - start;
      const { exitCode } = await daemon.exited(id);
      const words = `its stop took ${stopMs.toFixed(0)} ms and ended in ${exitCode}`;
      if (exitCode !== 0 || stopMs > stopMsMax) faults.push(words);
      return { faults, notes: [`${lines} lines; ${words}`] };
    };
    return {
      check,
      async attack(seconds) {
        if (!isBegun) {
          trouble.begin(disk, [log]);
          await daemon.exec(id, "touch /tmp/go");
          isBegun = true;
        }
        await sleep(seconds * 1000);
      },
      async [Symbol.asyncDispose]() {
        trouble.end(disk, [log]);
        await daemon.removePod(pod.id);
        disk[Symbol.dispose]();
      },
    };
  };
  return { name, item: "C9", about, prepare };
}

export const diskAttacks: Attack[] = [
  troubled({
    name: "full-log-disk",
    about: "a full disk and one line",
    command: oneLine,
    trouble: fullDisk,
  }),
  troubled({
    name: "full-log-disk-chatty",
    about: "a full disk and a chatty container",
    command: chatty,
    trouble: fullDisk,
  }),
  troubled({
    name: "immutable-log",
    about: "a log that must not be changed, and one line",
    command: oneLine,
    trouble: immutable,
  }),
  troubled({
    name: "read-only-log",
    about: "a log on a disk that has become read-only, chatty",
    command: chatty,
    trouble: readOnly,
  }),
];
