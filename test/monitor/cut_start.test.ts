// A monitor that is killed amid a start, with a runtime that then does not answer: the next one serves
// everybody else at once, and takes away what was begun when the runtime goes on.
import { afterAll, beforeAll, expect, test } from "bun:test";
import { existsSync, mkdirSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import process from "node:process";
import { until } from "../expect.ts";
import { busybox, Daemon, ociRuntime } from "../harness.ts";
import { busyboxImage } from "../image_maker.ts";

let daemon: Daemon;
/** A file here holds a verb of the runtime up, as long as it is there: "create". */
let held: string;

beforeAll(async () => {
  daemon = new Daemon({});
  held = join(daemon.dir, "held");
  for (const folder of [held, daemon.cniDir]) mkdirSync(folder);
  const program = join(daemon.dir, "runtime");
  const verbs = `for word; do case $word in create|delete) verb=$word; break;; esac; done`;
  const wait = `while [ -e ${held}/\${verb-none} ]; do touch ${held}/met-$verb; sleep 0.1; done`;
  const script = `#!/bin/sh\n${verbs}\n${wait}\nexec ${ociRuntime} "$@"\n`;
  writeFileSync(program, script, { mode: 0o755 });
  daemon.writeConfig({ runtimes: { slow: { path: program } } });
  await daemon.start();
  await daemon.loadImage(busyboxImage(), busybox);
});
afterAll(() => daemon?.[Symbol.asyncDispose]());

function hold(verb: string): Disposable {
  writeFileSync(join(held, verb), "");
  return { [Symbol.dispose]: () => rmSync(join(held, verb), { force: true }) };
}

const met = (verb: string) => existsSync(join(held, `met-${verb}`));

async function serves(id: string): Promise<boolean> {
  return daemon.exec(id, "true").then(
    () => true,
    () => false,
  );
}

test("a start that was cut off is undone behind everything else", async () => {
  const [pod, slow] = [daemon.hostPodConfig(), daemon.hostPodConfig()];
  const [podId, slowId] = [await daemon.runPod(pod), await daemon.runPod(slow, "slow")];
  const other = await daemon.run(podId, pod, ["sleep", "600"]);
  const cut = await daemon.create(slowId, slow, ["sleep", "600"]);
  {
    using _ = hold("delete");
    {
      using _ = hold("create");
      daemon.client.StartContainer({ container_id: cut }).catch(() => {});
      await until("it is being made", () => met("create"));
      const [pid] = daemon.monitors();
      process.kill(pid!, "SIGKILL");
      await until("it is being undone", () => met("delete"));
    }
    await until("the others are served", () => serves(other));
    const [pid] = daemon.monitors();
    expect((await daemon.output(podId, pod, "echo on")).text).toBe("on\n");
    expect(daemon.monitors()).toEqual([pid!]);
  }
  for (const id of [podId, slowId]) await daemon.removePod(id);
  const state = readdirSync(join(daemon.dir, "state"), { recursive: true, encoding: "utf8" });
  expect(state.filter((path) => path.includes(cut))).toEqual([]);
});
