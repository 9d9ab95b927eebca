// Project quotas: what all files with one project id take on a file system, and may take.
import { closeSync, constants, openSync } from "node:fs";
import { check, z } from "./libc.ts";

/** A project's blocks and inodes; limitBytes 0: none. */
export type ProjectQuota = { usedBytes: bigint; usedInodes: bigint; limitBytes: bigint };

// struct fsxattr of linux/fs.h: xflags, extsize, nextents, projid, cowextsize, padding.
const fsxattrBytes = 28;
const xflagsAt = 0;
const projectAt = 12;
const FS_IOC_FSGETXATTR = 0x801c581f;
const FS_IOC_FSSETXATTR = 0x401c5820;
const FS_XFLAG_PROJINHERIT = 0x200;

function withFolder<T>(folder: string, act: (fd: number) => T): T {
  const fd = openSync(folder, constants.O_RDONLY | constants.O_DIRECTORY | constants.O_NOFOLLOW);
  try {
    return act(fd);
  } finally {
    closeSync(fd);
  }
}

function readAttributes(fd: number, folder: string): Uint8Array {
  const attributes = new Uint8Array(fsxattrBytes);
  check("ioctl", `FS_IOC_FSGETXATTR of ${folder}`, fd, FS_IOC_FSGETXATTR, attributes);
  return attributes;
}

/** A folder's project id, 0 for none. @throws ENOTTY where the file system has no such ids. */
export function projectOf(folder: string): number {
  return withFolder(folder, (fd) =>
    new DataView(readAttributes(fd, folder).buffer).getUint32(projectAt, true),
  );
}

/** Gives an empty folder a project id, which all that is made in it inherits. */
export function setProject(folder: string, project: number): void {
  withFolder(folder, (fd) => {
    const attributes = readAttributes(fd, folder);
    const view = new DataView(attributes.buffer);
    const flags = view.getUint32(xflagsAt, true);
    view.setUint32(xflagsAt, (flags | FS_XFLAG_PROJINHERIT) >>> 0, true);
    view.setUint32(projectAt, project, true);
    check("ioctl", `FS_IOC_FSSETXATTR of ${folder}`, fd, FS_IOC_FSSETXATTR, attributes);
  });
}

// quotactl(2): QCMD(command, PRJQUOTA), struct dqblk of 64-bit fields: hard and soft limit of blocks of
// 1 KiB, bytes used, hard and soft limit of inodes, inodes used, two times; then which of them count.
const PRJQUOTA = 2;
const Q_GETQUOTA = 0x800007;
const Q_SETQUOTA = 0x800008;
const QIF_BLIMITS = 1;
const dqblkBytes = 72;
const blockBytes = 1024n;
// struct fs_quota_stat of linux/dqblk_xfs.h, which the kernel fills for other file systems too.
const Q_XGETQSTAT = 0x5805;
const fsQuotaStatBytes = 128;
const qsFlagsAt = 2;
const FS_QUOTA_PDQ_ENFD = 1 << 5;

function quotactl(command: number, device: string, project: number, quota: Uint8Array): void {
  check("quotactl", device, (command << 8) | PRJQUOTA, z(device), project, quota);
}

/** device: of the file system. @throws ESRCH where it counts no projects. */
export function projectQuota(device: string, project: number): ProjectQuota {
  const quota = new BigUint64Array(dqblkBytes / 8);
  try {
    quotactl(Q_GETQUOTA, device, project, new Uint8Array(quota.buffer));
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== "ENOENT") throw error; // xfs: nobody has used it yet
  }
  return { limitBytes: quota[0]! * blockBytes, usedBytes: quota[2]!, usedInodes: quota[5]! };
}

/**
 * Whether limits of projects are kept to, beside being counted. A trial would not tell: ext4 lets whoever
 * has CAP_SYS_RESOURCE write on. @throws ENOSYS or ESRCH where there are no quotas at all.
 */
export function limitsProjects(device: string): boolean {
  const state = new Uint8Array(fsQuotaStatBytes);
  quotactl(Q_XGETQSTAT, device, 0, state);
  return (new DataView(state.buffer).getUint16(qsFlagsAt, true) & FS_QUOTA_PDQ_ENFD) !== 0;
}

/** bytes: rounded up to a KiB; 0 takes the limit away. */
export function setProjectLimit(device: string, project: number, bytes: bigint): void {
  const blocks = (bytes + blockBytes - 1n) / blockBytes;
  const quota = new BigUint64Array(dqblkBytes / 8);
  quota[0] = blocks;
  quota[1] = blocks;
  quota[8] = BigInt(QIF_BLIMITS);
  quotactl(Q_SETQUOTA, device, project, new Uint8Array(quota.buffer));
}
