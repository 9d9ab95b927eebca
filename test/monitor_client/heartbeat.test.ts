// Tests a monitor that is stopped: it holds its socket, and answers nothing.
import { expect, test } from "bun:test";
import { readFileSync } from "node:fs";
import process from "node:process";
import { failure, until } from "../expect.ts";
import { startDaemon } from "../harness.ts";
import { logText } from "../log_text.ts";

// At once: each waits for fifteen seconds.
test.concurrent("it is killed and replaced: calls end, containers and what they tell do not notice", async () => {
  await using daemon = await startDaemon({ network: false });
  const pod = daemon.hostPodConfig();
  const podId = await daemon.runPod(pod);
  const id = await daemon.run(
    podId,
    pod,
    "trap 'exit 7' USR1; n=0; while :; do n=$((n + 1)); echo $n; sleep 0.5 & wait; done",
  );
  await daemon.logged(id, "1");
  const [stopped] = daemon.monitors();
  process.kill(stopped!, "SIGSTOP");
  const error = await failure(daemon.exec(id, "true", 1));
  expect(error.code).toBe("UNAVAILABLE");
  await until("there is another monitor", () => !daemon.monitors().includes(stopped!));
  await until("it serves", () =>
    daemon.exec(id, "true").then(
      () => true,
      () => false,
    ),
  );
  expect(daemon.log).toContain("the monitor does not answer");
  await daemon.exec(id, "kill -USR1 1");
  const exit = await daemon.exited(id);
  expect(exit.exitCode).toBe(7);
  // One line may come twice, at the place of the kill.
  const lines = [
    ...new Set(logText(readFileSync(exit.status.log_path!, "utf8")).trimEnd().split("\n")),
  ];
  expect(lines).toEqual(lines.map((_, index) => String(index + 1)));
  expect(lines.length).toBeGreaterThan(20);
  await daemon.removePod(podId);
});

test.concurrent("a daemon that starts meets it: it is killed and replaced, and the daemon serves", async () => {
  await using daemon = await startDaemon({ network: false });
  const pod = daemon.hostPodConfig();
  const podId = await daemon.runPod(pod);
  const id = await daemon.run(podId, pod, ["sleep", "600"]);
  await daemon.stop("SIGKILL");
  const [stopped] = daemon.monitors();
  process.kill(stopped!, "SIGSTOP");
  await daemon.start();
  expect(daemon.monitors()).not.toContain(stopped!);
  expect((await daemon.exec(id, "echo served")).stdout).toBe("served\n");
  await daemon.removePod(podId);
});
