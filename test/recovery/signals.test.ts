// Tests that daemon and monitor survive signals that end a process by default, and terminals that close.
import { expect, test } from "bun:test";
import { spawn } from "node:child_process";
import { existsSync, readFileSync, statSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { until } from "../expect.ts";
import { executable, startDaemon } from "../harness.ts";

const survived: NodeJS.Signals[] = [
  "SIGHUP",
  "SIGUSR1",
  "SIGUSR2",
  "SIGPIPE",
  "SIGALRM",
  "SIGVTALRM",
  "SIGPROF",
  "SIGIO",
  "SIGXCPU",
];
const line = /ignoring.* signal=(\w+)/g;

function ignored(log: string): string[] {
  return [...log.matchAll(line)].map(([, name]) => name!).sort();
}

test("daemon and monitor survive signals that would end them, with a line each", async () => {
  await using daemon = await startDaemon({ network: false, image: false });
  const [monitor] = daemon.monitors();
  // The engine ignores SIGPIPE, which ends whoever writes to a closed pipe.
  const told = survived.filter((name) => name !== "SIGPIPE").sort();
  // SIGHUP makes it reload its configuration, SIGUSR1 write a dump.
  const toldByDaemon = told.filter((name) => name !== "SIGHUP" && name !== "SIGUSR1");
  for (const pid of [daemon.pid, monitor!]) {
    for (const signal of survived) process.kill(pid, signal);
  }
  await until("the daemon says so", () => ignored(daemon.log).length === toldByDaemon.length);
  expect(ignored(daemon.log)).toEqual(toldByDaemon);
  await daemon.client.Version({});
  expect(daemon.monitors()).toEqual([monitor!]);
  const own = join(daemon.dir, "state/monitor.log");
  await until(
    "the monitor says so",
    () => ignored(readFileSync(own, "utf8")).length === told.length,
  );
  await daemon.stop("SIGTERM");
  expect(daemon.log).toContain("containers continue signal=SIGTERM");
});

test.each(["SIGTERM", "SIGINT", "SIGQUIT"] as const)(
  "%s ends the daemon orderly",
  async (signal) => {
    await using daemon = await startDaemon({ network: false, image: false });
    await daemon.stop(signal);
    expect(daemon.log).toContain(`containers continue signal=${signal}`);
  },
);

test("the daemon outlives the terminal that it was started from", async () => {
  await using daemon = await startDaemon({ network: false, image: false });
  await daemon.stop();
  // script(1) is the terminal: with it, the terminal closes and its processes get SIGHUP.
  const command = `exec ${executable} --config ${daemon.configFile}`;
  const terminal = spawn("script", ["-qec", command, "/dev/null"], {
    stdio: "ignore",
    detached: true,
  });
  const pidfile = join(daemon.dir, "isulad.pid");
  const serves = () =>
    daemon.client.Version({}, { timeoutMs: 1000 }).then(
      () => true,
      () => false,
    );
  await until("the daemon serves", serves);
  const text = readFileSync(pidfile, "utf8");
  expect(text).toMatch(/^\d+$/); // no newline: the node e2e suite refuses one
  const pid = Number(text);
  try {
    terminal.kill("SIGKILL");
    await sleep(500);
    for (let i = 0; i < 3; i++) process.kill(pid, "SIGUSR1"); // lines that nobody can read
    await sleep(500);
    expect(await serves()).toBe(true);
    expect(statSync(`/proc/${pid}`).isDirectory()).toBe(true);
  } finally {
    process.kill(pid, "SIGTERM");
    await until("the daemon has ended", () => !existsSync(`/proc/${pid}`));
  }
});

test("sockets and folders have the modes they should, whatever the umask of who starts", async () => {
  for (const umask of [0o000, 0o077]) {
    const before = process.umask(umask);
    let daemon;
    try {
      daemon = await startDaemon({ network: false, image: false });
    } finally {
      process.umask(before);
    }
    await using _ = daemon;
    const mode = (name: string) => (statSync(join(daemon.dir, name)).mode & 0o777).toString(8);
    expect([mode("isulad.sock"), mode("isulad.pid")]).toEqual(["600", "644"]);
  }
});
