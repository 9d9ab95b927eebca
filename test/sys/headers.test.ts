// Tests constants and structures of the kernel's interface against the C headers of x64 and arm64.
import { expect, test } from "bun:test";
import { spawnSync } from "node:child_process";
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { epollEvent } from "../../src/sys/epoll.ts";

const root = join(import.meta.dirname, "../..");
const targets = [
  { arch: "x64", triplet: "x86_64-linux-gnu" },
  { arch: "arm64", triplet: "aarch64-linux-gnu" },
];

/** sys/mount.h of glibc 2.36 has open_tree's flags; Debian 12's linux/pidfd.h is older than PIDFD_GET_INFO. */
const included =
  "elf fcntl netinet/in netinet/tcp poll sched signal stddef sys/epoll sys/file sys/ioctl sys/mman sys/mount sys/resource sys/socket sys/stat sys/uio sys/un sys/wait time linux/dqblk_xfs linux/fs linux/quota linux/vm_sockets";
const headers = `#define _GNU_SOURCE
${included.replaceAll(/\S+/g, (name) => `#include <${name}.h>\n`)}
#ifndef PIDFD_GET_INFO
#define PIDFD_GET_INFO _IOWR(0xFF, 11, char[64])
#define PIDFD_INFO_EXIT (1UL << 3)
#endif
`;

/** Their names look like the kernel's, but are SPDY's. */
const others = /spdy/;

/** The constants of a source that have names and values as in C. */
function constantsOf(text: string): { name: string; value: string }[] {
  const found = text.matchAll(
    /^\s*(?:export )?const ([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+|E?POLL[A-Z]+|FIONREAD|PRJQUOTA|TIOCOUTQ|TIOCSWINSZ|WEXITED|WNOHANG|WNOWAIT) = (.+);$/gm,
  );
  return [...found].map(([, name, value]) => ({
    name: name!,
    value: value!
      .replaceAll("constants.", "")
      .replaceAll(/(?<=\d)_(?=\d)/g, "")
      .replaceAll(/\b0o/g, "0")
      .replaceAll(/(?<=[\da-f])n\b/g, ""),
  }));
}

function allConstants() {
  const files = readdirSync(join(root, "src"), { recursive: true, encoding: "utf8" });
  return files
    .filter((file) => file.endsWith(".ts") && !file.startsWith("proto/") && !others.test(file))
    .flatMap((file) => constantsOf(readFileSync(join(root, "src", file), "utf8")));
}

/** [structure, its bytes, offsets of fields] as the sources have them. */
function structures(arch: string): [string, number, Record<string, number>][] {
  const { bytes, dataAt } = epollEvent(arch);
  return [
    ["struct epoll_event", bytes, { events: 0, data: dataAt }],
    ["struct fsxattr", 28, { fsx_xflags: 0, fsx_projid: 12 }],
    [
      "struct if_dqblk",
      72,
      { dqb_bhardlimit: 0, dqb_bsoftlimit: 8, dqb_curspace: 16, dqb_curinodes: 40, dqb_valid: 64 },
    ],
    ["struct fs_quota_stat", 80, { qs_flags: 2 }],
    ["struct sockaddr_un", 110, { sun_path: 2 }],
    ["struct sockaddr_in", 16, { sin_port: 2, sin_addr: 4 }],
    ["struct sockaddr_in6", 28, { sin6_port: 2, sin6_addr: 8 }],
    [
      "struct msghdr",
      56,
      { msg_iov: 16, msg_iovlen: 24, msg_control: 32, msg_controllen: 40, msg_flags: 48 },
    ],
    ["struct cmsghdr", 16, { cmsg_len: 0, cmsg_level: 8, cmsg_type: 12 }],
    ["struct iovec", 16, { iov_base: 0, iov_len: 8 }],
    ["struct pollfd", 8, { fd: 0, events: 4, revents: 6 }],
    ["struct winsize", 8, { ws_row: 0, ws_col: 2 }],
    ["struct rlimit", 16, { rlim_cur: 0, rlim_max: 8 }],
    ["struct timespec", 16, { tv_sec: 0, tv_nsec: 8 }],
    ["struct mount_attr", 32, { attr_set: 0, attr_clr: 8, propagation: 16, userns_fd: 24 }],
    ["siginfo_t", 128, { si_code: 8, si_pid: 16, si_status: 24 }],
    ["sigset_t", 128, {}],
  ];
}

/** Returns the names of wrong assertions, which the compiler reports; none of the program runs. */
function wrong(compiler: string, assertions: { name: string; holds: string }[]): string[] {
  const lines = assertions.map(({ name, holds }) => `_Static_assert(${holds}, "${name}");`);
  const argv = ["-x", "c", "-fsyntax-only", "-fmax-errors=0", "-"];
  const done = spawnSync(compiler, argv, { input: headers + lines.join("\n"), encoding: "utf8" });
  const errors = done.stderr.split("\n").filter((line) => line.includes("error:"));
  const named = errors.map((line) => /static assertion failed: "(.*)"/.exec(line)?.[1] ?? line);
  return done.status === 0 ? [] : named;
}

const equal = ({ name, value }: { name: string; value: string }) => ({
  name,
  holds: `(long long)(${value}) == (long long)(${name})`,
});

for (const { arch, triplet } of targets) {
  const compiler = Bun.which(`${triplet}-gcc`);
  const why = compiler === null ? ` (skipped: no ${triplet}-gcc here)` : "";

  test.skipIf(compiler === null)(`constants are those of the headers of ${arch}${why}`, () => {
    const constants = allConstants();
    expect(constants.length).toBeGreaterThan(70);
    expect(wrong(compiler!, constants.map(equal))).toEqual([]);
    // Of the other architecture, the test can tell.
    const planted = { name: "O_DIRECTORY", value: arch === "x64" ? "040000" : "0200000" };
    expect(wrong(compiler!, [planted].map(equal))).toEqual(["O_DIRECTORY"]);
  });

  test.skipIf(compiler === null)(`structures are those of the headers of ${arch}${why}`, () => {
    const assertions = structures(arch).flatMap(([struct, bytes, fields]) => [
      { name: struct, holds: `sizeof(${struct}) == ${bytes}` },
      ...Object.entries(fields).map(([field, at]) => ({
        name: `${struct}.${field}`,
        holds: `offsetof(${struct}, ${field}) == ${at}`,
      })),
    ]);
    expect(wrong(compiler!, assertions)).toEqual([]);
    const planted = {
      name: "epoll_event",
      holds: `sizeof(struct epoll_event) == ${28 - epollEvent(arch).bytes}`,
    };
    expect(wrong(compiler!, [planted])).toEqual(["epoll_event"]);
  });
}
