// Tests single keys of daemon.json: what they accept, what they need, and that the daemon reads each.
import { expect, test } from "bun:test";
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { allKeys, daemonKeys } from "../../../src/base/config_keys.ts";
import { nriKeys } from "../../../src/base/config_nri_keys.ts";
import { load, refusal, useConfigFolder } from "./config_file.ts";

useConfigFolder();

test("loadConfig refuses required image verifiers without a folder of them", () => {
  expect(refusal({ "image-verifier-required": true })).toEqual([
    'FILE:2: "image-verifier-required" needs "image-verifier-dir", the folder of the verifiers',
  ]);
  const both = { "image-verifier-required": true, "image-verifier-dir": "/opt/verifiers" };
  expect(load(both).config).toMatchObject({ imageVerifierRequired: true, maxVerifiers: 10 });
  expect(refusal({ "max-verifiers": 0, "per-verifier-timeout": "1h" })).toHaveLength(2);
});

test.each<[object, string]>([
  [
    { hosts: ["unix:///run/a.sock", "unix:///var/run/a.sock"] },
    '"hosts" must not have "/var/run/a.sock" twice',
  ],
  [
    { hosts: ["unix:///run/a.sock"], "containerd-socket": "/run/a.sock" },
    '"containerd-socket" must not have "/run/a.sock" as "hosts" has',
  ],
  [
    { hosts: ["unix:///run/a.sock"], pidfile: "/run/a.sock" },
    '"hosts" must not have "/run/a.sock" as "pidfile" has',
  ],
  [{ graph: "/srv/a", state: "/srv/a/" }, '"state" must not have "/srv/a" as "graph" has'],
  [
    { "serve-blobs": "[::]:9100", "metrics-port": 9100 },
    '"metrics-port" must not have 9100 as "serve-blobs" has',
  ],
])("loadConfig refuses %j, of which only one use would work", (given, told) => {
  const served = { "keep-blobs": true, "serve-blobs-clients": ["10.0.0.0/8"] };
  expect(refusal({ ...served, ...given })).toEqual([expect.stringContaining(told)]);
});

test("loadConfig takes one port at different addresses, and folders in each other", () => {
  const served = { "keep-blobs": true, "serve-blobs-clients": ["10.0.0.0/8"] };
  const port = { "serve-blobs": "10.0.0.1:9100", "metrics-port": 9100 };
  load({
    ...served,
    ...port,
    "metrics-address": "127.0.0.1",
    graph: "/srv/a",
    state: "/srv/a/state",
  });
});

test("loadConfig takes a seccomp profile in the form of old kubelets, and no other", () => {
  for (const profile of ["", "unconfined", "runtime/default", "localhost//etc/s.json"]) {
    const { config } = load({ "unset-seccomp-profile": profile });
    expect(config.unsetSeccompProfile).toBe(profile);
  }
  for (const wrong of ["default", "localhost/s.json", "localhost//", 1]) {
    expect(refusal({ "unset-seccomp-profile": wrong })[0]).toContain('"runtime/default"');
  }
});

test("loadConfig warns of streams in plain text off loopback, and refuses what is no address", () => {
  const told = (more: object) => load({ "stream-server-address": "10.0.0.1", ...more }).warnings;
  expect(told({})).toEqual([expect.stringContaining("in plain text: set stream-tls-cert")]);
  expect(told({ "stream-tls-cert": "/c", "stream-tls-key": "/k" })).toEqual([]);
  for (const local of ["127.0.0.2", "::1"]) {
    expect(told({ "stream-server-address": local })).toEqual([]);
  }
  for (const wrong of ["0.0.0.0", "::", "localhost", "10.0.0.1:80", 1]) {
    expect(refusal({ "stream-server-address": wrong })[0]).toContain("an IP address of the node");
  }
});

test("loadConfig takes a mirror for other nodes with blobs and clients only", () => {
  const mirror = {
    "keep-blobs": true,
    "serve-blobs": "0.0.0.0:5010",
    "serve-blobs-clients": ["10.1.0.0/16"],
  };
  const tls = { "serve-blobs-tls-cert": "/c", "serve-blobs-tls-key": "/k" };
  expect(load({ ...mirror, ...tls, "serve-blobs-private": true }).config).toMatchObject({
    serveBlobs: "0.0.0.0:5010",
    serveBlobsImages: ["*"],
  });
  for (const [more, needed] of [
    [{ "keep-blobs": false }, '"serve-blobs" needs "keep-blobs": true'],
    [{ "serve-blobs-clients": [] }, '"serve-blobs" needs "serve-blobs-clients"'],
    [{ "serve-blobs-private": true }, '"serve-blobs-private" needs "serve-blobs-tls-cert"'],
    [{ "serve-blobs-tls-cert": "/c" }, '"serve-blobs-tls-cert" needs "serve-blobs-tls-key", too'],
  ] as const) {
    expect(refusal({ ...mirror, ...more })).toEqual([expect.stringContaining(needed)]);
  }
});

test.each([
  [
    "serve-blobs",
    ["127.0.0.1:1", "[::]:5010"],
    ["5010", ":5010", "host:5010", "::1:5010", "1.2.3.4:0"],
  ],
  [
    "serve-blobs-clients",
    [["fd00::/8", "10.0.0.1/32"]],
    [["10.0.0.1"], ["10.0.0.0/33"], ["x/8"], "10.0.0.0/8"],
  ],
  [
    "serve-blobs-images",
    [["*", "a.test:5000/b/*", "busybox"]],
    [["busybox:1"], ["a@sha256:1"], ["/a"], [""]],
  ],
])("loadConfig takes right values of %s only", (key, right, wrong) => {
  const others = { "keep-blobs": true, "serve-blobs-clients": ["10.0.0.0/8"] };
  for (const value of right) load({ ...others, [key]: value });
  for (const value of wrong) {
    expect(refusal({ [key]: value })).toEqual([expect.stringContaining(`"${key}" must be`)]);
  }
});

test("iSulad's keys about images do not stop the start", () => {
  const sock = "unix:///var/run/isulad/isula_image.sock";
  const { warnings } = load({ "image-opt-timeout": "5m", "image-server-sock-addr": sock });
  expect(warnings).toEqual([
    expect.stringContaining('"image-opt-timeout" has no effect'),
    expect.stringContaining('"image-server-sock-addr" has no effect'),
  ]);
});

test("loadConfig refuses a socket for a user below a folder that only root may enter", () => {
  const hosts = ["unix:///var/run/isulad/i.sock"];
  expect(refusal({ "socket-uid": 1000, hosts })).toEqual([
    expect.stringMatching(
      /^FILE:3: "hosts" must not have .* for the user 1000 \("socket-uid"\): it lies/,
    ),
  ]);
  expect(load({ "socket-uid": 0, hosts }).config.socketUid).toBe(0);
  expect(load({ "socket-uid": 1000 }).config.socketUid).toBe(1000);
  for (const wrong of [-1, 2 ** 32 - 1, "1000", 1.5]) {
    expect(refusal({ "socket-uid": wrong })[0]).toStartWith('FILE:2: "socket-uid" must be a whole');
  }
});

test.each(["max-recv-message-size", "max-send-message-size"])("loadConfig bounds %s", (key) => {
  expect(load({ [key]: 32 << 20 }).config).toMatchObject(
    key.startsWith("max-recv") ? { maxRecvBytes: 32 << 20 } : { maxSendBytes: 32 << 20 },
  );
  for (const wrong of [(16 << 20) - 1, (256 << 20) + 1, "16MiB", null]) {
    expect(refusal({ [key]: wrong })[0]).toStartWith(
      `FILE:2: "${key}" must be a whole number from`,
    );
  }
});

test("storage-opts gives overlayfs mount options", () => {
  const options = (...given: string[]) =>
    load({ "storage-opts": given.map((one) => `overlay2.mountopt=${one}`) }).config.overlayOptions;
  expect(options()).toEqual([]);
  expect(options("metacopy=on,volatile", "xino=off")).toEqual([
    ["metacopy", "on"],
    ["xino", "off"],
  ]);
  for (const wrong of ["metacopy", "metacopy=yes", "lowerdir=/etc", "toString=on", ""]) {
    expect(refusal({ "storage-opts": [`overlay2.mountopt=${wrong}`] })).toEqual([
      expect.stringMatching(
        /^FILE:2: "storage-opts" must have overlay2.mountopt with options of index=/,
      ),
    ]);
  }
  const native = { "storage-driver": "native", "storage-opts": ["overlay2.mountopt=index=on"] };
  expect(load(native).warnings).toEqual([expect.stringContaining("no effect with the storage")]);
});

test.each(allKeys.map(({ key }) => key))(
  "loadConfig refuses %s that is no value of any kind, with file, line and key",
  (key) => {
    const [message, ...others] = refusal(`{\n"${key}": [[]]}`);
    expect(message).toStartWith(`FILE:2: "${key}" must be `);
    expect(others).toEqual([]);
  },
);

/** Keys that src/base itself checks, or turns into the other fields of the configuration. */
const resolvedInBase = ["criRuntimes", "storageOpts", "enableCriV1"];
const resolved = ["containerBytes", "overlayOptions"];

test("each key of daemon.json is read by a room that does something with it", () => {
  const src = join(import.meta.dirname, "../../../src");
  const files = readdirSync(src, { recursive: true, encoding: "utf8" });
  const readers = files.filter((name) => name.endsWith(".ts") && !/^(base|cli|proto)\//.test(name));
  const text = readers.map((name) => readFileSync(join(src, name), "utf8")).join("\n");
  const given = Object.keys({ ...daemonKeys, ...nriKeys });
  const fields = [...given.filter((field) => !resolvedInBase.includes(field)), ...resolved];
  const isRead = (field: string) => new RegExp(`(\\.|[{,]\\s*|")${field}\\b`).test(text);
  expect(fields.filter((field) => !isRead(field))).toEqual([]);
});
