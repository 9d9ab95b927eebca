// Tests the commands of the CLI against a fake daemon: arguments, calls, output and exit codes.
import { afterAll, expect, test } from "bun:test";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { CriError } from "../../src/base/errors.ts";
import { runtime } from "../../src/proto/messages.js";
import { fakeDaemon } from "./fake_daemon.ts";

const dir = mkdtempSync(join(tmpdir(), "isulad-commands-"));
const socket = join(dir, "daemon.sock");
const main = join(import.meta.dirname, "cli_main.ts");
afterAll(() => rmSync(dir, { recursive: true }));

const { CONTAINER_EXITED, CONTAINER_RUNNING } = runtime.v1.ContainerState;

async function isuladTs(...words: string[]) {
  const child = Bun.spawn([process.execPath, main, ...words], {
    env: { ...process.env, ISULAD_HOST: `unix://${socket}`, ISULAD_CREDS: "" },
    stderr: "pipe",
  });
  const [stdout, stderr] = await Promise.all([child.stdout.text(), child.stderr.text()]);
  return { code: await child.exited, stdout, stderr };
}

test("pull passes credentials, and rejects malformed ones", async () => {
  const seen: unknown[] = [];
  await using daemon = await fakeDaemon(socket, {
    async *Pull({ image, auth }) {
      seen.push(image, auth?.username, auth?.password);
      yield { images: ["sha256:1"] };
    },
  });
  expect(await isuladTs("pull", "--creds", "me:a:b", "x/y:1")).toEqual({
    code: 0,
    stdout: "Image is up to date for sha256:1\n",
    stderr: "Pulling x/y:1\n",
  });
  expect(seen).toEqual(["x/y:1", "me", "a:b"]);
  expect((await isuladTs("pull", "--creds", "me", "x")).stderr).toContain("user:password");
  expect(daemon.calls).toEqual(["Pull"]);
});

test.each([
  ["pull --creds me x", "--creds and $ISULAD_CREDS have the form user:password"],
  ["registry check --creds me x", "--creds and $ISULAD_CREDS have the form user:password"],
  ["stop --timeout soon x", '--timeout takes whole seconds, not "soon"'],
  ["pods --name [", "--name: Invalid regular expression"],
  ["pods --state dead", '--state takes ready, notready, not "dead"'],
  ["rm --all x", "Specify a container, or --all"],
  ["rmp", "Specify a pod, or --all"],
  ["stop", "CONTAINER is missing. See isulad-ts stop --help."],
  ["update --memory 0 x", '--memory takes a whole number other than 0, not "0"'],
  ["config show x", 'Unexpected argument "x". See isulad-ts config show --help.'],
])("%s: exits with 2 before any call", async (words, said) => {
  await using daemon = await fakeDaemon(socket, {});
  const { code, stdout, stderr } = await isuladTs(...words.split(" "));
  expect([code, stdout]).toEqual([2, ""]);
  expect(stderr).toContain(said);
  expect(daemon.calls).toEqual([]);
});

test("ps lists running containers, with -a all, and with --pod those of a pod", async () => {
  const filters: unknown[] = [];
  await using daemon = await fakeDaemon(socket, {
    ListContainers: ({ filter }) => {
      filters.push([filter?.state?.state, filter?.pod_sandbox_id]);
      return { containers: [] };
    },
    ListPodSandbox: () => ({
      items: [{ id: "p1", metadata: { name: "web", namespace: "default" } }],
    }),
  });
  await isuladTs("ps");
  await isuladTs("ps", "-a", "--pod", "default/web");
  expect(filters).toEqual([
    [CONTAINER_RUNNING, ""],
    [undefined, "p1"],
  ]);
  expect(daemon.calls).toEqual(["ListContainers", "ListPodSandbox", "ListContainers"]);
});

test("images of a name that no image has says so, and finds a mistyped subcommand", async () => {
  await using _ = await fakeDaemon(socket, { ListImages: () => ({ images: [] }) });
  const header = "IMAGE               TAG                 IMAGE ID            SIZE\n";
  for (const [name, advice] of [
    ["prun", "did you mean isulad-ts images prune?"],
    ["busybox", "isulad-ts images lists all"],
  ] as const) {
    const stderr = `isulad-ts: no image ${name}: ${advice}\n`;
    expect(await isuladTs("images", name)).toEqual({ code: 0, stdout: header, stderr });
  }
  expect((await isuladTs("images")).stderr).toBe("");
});

test.each([
  "-q -f dangling=true",
  "-qf dangling=true",
  "-q -filter dangling=true",
  "-qf=dangling=true",
])("images %s lists only what may be removed", async (options) => {
  await using _ = await fakeDaemon(socket, {
    ListImages: () => ({
      images: [{ id: "sha256:1", repo_tags: ["registry.example/app:1"] }, { id: "sha256:2" }],
    }),
  });
  const { code, stdout } = await isuladTs("images", "--no-trunc", ...options.split(" "));
  expect([code, stdout]).toEqual([0, "sha256:2\n"]);
});

test("pull and run tell which other tags the node has when the registry cannot be reached", async () => {
  await using _ = await fakeDaemon(socket, {
    ListImages: () => ({ images: [{ id: "sha256:1", repo_tags: ["registry.example/app:1"] }] }),
    ImageStatus: () => ({}),
    async *Pull() {
      yield {};
      throw new CriError("UNAVAILABLE", "cannot get it");
    },
  });
  const reason = "cannot get it; this node has registry.example/app:1\n";
  const pulled = await isuladTs("pull", "registry.example/app");
  expect([pulled.code, pulled.stderr]).toEqual([
    1,
    `Pulling registry.example/app\nregistry.example/app: ${reason}`,
  ]);
  const ran = await isuladTs("run", "registry.example/app");
  expect([ran.code, ran.stderr]).toEqual([
    125,
    `Pulling registry.example/app\nisulad-ts: ${reason}`,
  ]);
});

test("rm continues after a failure, and removes a running container only with --force", async () => {
  const removed: unknown[] = [];
  await using daemon = await fakeDaemon(socket, {
    ListPodSandbox: () => ({ items: [] }),
    ListContainers: () => ({
      containers: [
        { id: "runs-whole", state: CONTAINER_RUNNING },
        { id: "done-whole", state: CONTAINER_EXITED },
      ],
    }),
    RemoveContainer: ({ container_id }) => {
      removed.push(container_id);
      return {};
    },
  });
  expect(await isuladTs("rm", "none", "runs", "done")).toEqual({
    code: 1,
    stdout: "done\n",
    stderr:
      "none: container none not found: isulad-ts ps -a lists all\nruns: the container is running: stop it first (isulad-ts stop), or use --force\n",
  });
  expect((await isuladTs("rm", "-f", "runs")).code).toBe(0);
  expect(removed).toEqual(["done-whole", "runs-whole"]);
  expect(daemon.calls).toContain("RemoveContainer");
});

test("events prints each event in crictl's JSON until the stream ends", async () => {
  await using daemon = await fakeDaemon(socket, {
    GetContainerEvents: async function* () {
      const { CONTAINER_STOPPED_EVENT } = runtime.v1.ContainerEventType;
      yield { container_id: "c1", container_event_type: CONTAINER_STOPPED_EVENT };
    },
  });
  const { code, stdout } = await isuladTs("events");
  expect(code).toBe(0);
  expect(JSON.parse(stdout)).toMatchObject({
    containerId: "c1",
    containerEventType: "CONTAINER_STOPPED_EVENT",
    createdAt: "0",
  });
  expect(daemon.calls).toEqual(["GetContainerEvents"]);
});

test("runp gives a pod without a uid a random one, and keeps that of another", async () => {
  const uids: unknown[] = [];
  await using _ = await fakeDaemon(socket, {
    RunPodSandbox: ({ config }) => {
      uids.push(config?.metadata?.uid);
      return { pod_sandbox_id: "p1" };
    },
  });
  for (const uid of ["", "", "u1"]) {
    const file = join(dir, "pod.json");
    writeFileSync(file, JSON.stringify({ metadata: { name: "web", namespace: "default", uid } }));
    expect(await isuladTs("runp", file)).toEqual({ code: 0, stdout: "p1\n", stderr: "" });
  }
  const uuid = expect.stringMatching(/^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/) as string;
  expect(uids).toEqual([uuid, uuid, "u1"]);
  expect(uids[0]).not.toBe(uids[1]);
});
