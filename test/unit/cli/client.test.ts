// Tests the CLI's client: calls, streams, cancellation, and a missing socket.
import { afterAll, expect, test } from "bun:test";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { toLong } from "../../../src/base/int64.ts";
import { CriError } from "../../../src/base/errors.ts";
import { connect, unreachableReason } from "../../../src/cli/client.ts";
import { fakeDaemon } from "../../cli/fake_daemon.ts";

const dir = mkdtempSync(join(tmpdir(), "isulad-cli-"));
const socket = join(dir, "daemon.sock");
afterAll(() => rmSync(dir, { recursive: true }));

test("a call passes its request and returns the response, int64 as Long", async () => {
  await using daemon = await fakeDaemon(socket, {
    StopContainer: (request) => {
      expect([request.container_id, request.timeout?.toString()]).toEqual([
        "abc",
        "9007199254740993",
      ]);
      return {};
    },
    Version: () => ({ runtime_name: "isulad-ts" }),
  });
  using client = connect(daemon.host);
  await client.StopContainer({ container_id: "abc", timeout: toLong(9007199254740993n) });
  expect((await client.Version({})).runtime_name).toBe("isulad-ts");
});

test("a stream yields its items and then the daemon's error", async () => {
  await using daemon = await fakeDaemon(socket, {
    async *Pull() {
      yield { image: "a", images: ["b"] };
      throw new CriError("NOT_FOUND", "no such image");
    },
  });
  using client = connect(daemon.host);
  const seen: string[] = [];
  const read = async () => {
    for await (const item of client.Pull({ image: "a" })) seen.push(...item.images);
  };
  expect(await read().catch((error) => [error.code, error.message])).toEqual([
    "NOT_FOUND",
    "no such image",
  ]);
  expect(seen).toEqual(["b"]);
});

test("the end of an iteration, an abort and a deadline cancel the call in the daemon", async () => {
  const cancelled: string[] = [];
  const caller = new AbortController();
  const hang = (name: string, signal: AbortSignal) => {
    if (name === "Version") setTimeout(() => caller.abort(), 50);
    return new Promise<object>(() => signal.addEventListener("abort", () => cancelled.push(name)));
  };
  await using daemon = await fakeDaemon(socket, {
    async *Pull(_request, signal) {
      yield {};
      await hang("Pull", signal);
    },
    Version: (_request, signal) => hang("Version", signal),
    Status: (_request, signal) => hang("Status", signal),
  });
  using client = connect(daemon.host);
  for await (const item of client.Pull({})) {
    expect(item.image).toBe("");
    break;
  }
  const aborted = client.Version({}, { signal: caller.signal });
  expect(await aborted.catch((error) => error.code)).toBe("CANCELLED");
  expect(await client.Status({}, { timeoutMs: 2_000 }).catch((error) => error.code)).toBe(
    "DEADLINE_EXCEEDED",
  );
  while (cancelled.length < 3) await Bun.sleep(5);
  expect(cancelled.sort()).toEqual(["Pull", "Status", "Version"]);
});

test("a missing socket is reported with its path and a hint", async () => {
  using client = connect(join(dir, "none.sock"));
  expect(await client.Version({}).catch((error) => [error.code, error.message])).toEqual([
    "UNAVAILABLE",
    `Cannot reach the daemon at ${join(dir, "none.sock")}: no such socket. Is it running? Another socket is set by --host, $ISULAD_HOST, $CONTAINER_RUNTIME_ENDPOINT or /etc/crictl.yaml.`,
  ]);
});

test("a daemon that ends during a call is reported with what to do next", async () => {
  const daemon = await fakeDaemon(socket, {
    async *Pull() {
      yield {};
      await new Promise(() => {});
    },
  });
  using client = connect(daemon.host);
  const read = async () => {
    for await (const item of client.Pull({})) {
      expect(item.image).toBe("");
      await daemon[Symbol.asyncDispose]();
    }
  };
  expect(await read().catch((error) => [error.code, error.message])).toEqual([
    "UNAVAILABLE",
    `the daemon at ${daemon.host} has ended during this call: repeat it when it runs again`,
  ]);
});

test("a socket that the user may not open is reported with who may", async () => {
  // Opening the socket as another user needs a process of its own; this is grpc-js's error.
  const details = "No connection established. Last error: connect EACCES /run/i.sock.";
  expect(unreachableReason(details)).toBe(
    `permission denied. Be root, or in the socket's group ("group" in daemon.json).`,
  );
  expect(unreachableReason("No connection established.")).toContain("Is it running?");
});

test("an own call to the socket of another runtime is reported as such", async () => {
  await using daemon = await fakeDaemon(socket, {});
  using client = connect(daemon.host);
  expect(client.Reload({})).rejects.toThrow("is the socket of another runtime");
  expect(client.Version({})).rejects.toThrow("Version is not faked"); // CRI's own
});
