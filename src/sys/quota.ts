// Reads and sets project quotas: the usage and the limit of all files with one project id on a file system.
import { constants } from "node:fs";
import { errnoOf } from "../base/errors.ts";
import { Descriptor } from "./descriptor.ts";
import { check, z } from "./libc.ts";

/** limitBytes 0: no limit. */
type ProjectQuota = { usedBytes: bigint; usedInodes: bigint; limitBytes: bigint };

// struct fsxattr of linux/fs.h: xflags, extsize, nextents, projid, cowextsize, padding.
const fsxattrBytes = 28;
const xflagsAt = 0;
const projectAt = 12;
const FS_IOC_FSGETXATTR = 0x801c581f;
const FS_IOC_FSSETXATTR = 0x401c5820;
const FS_XFLAG_PROJINHERIT = 0x200;

function openFolder(path: string): Descriptor {
  const { O_RDONLY, O_DIRECTORY, O_NOFOLLOW } = constants;
  return Descriptor.open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
}

function readAttributes({ fd }: Descriptor, path: string): DataView {
  const attributes = new Uint8Array(fsxattrBytes);
  check("ioctl", `FS_IOC_FSGETXATTR of ${path}`, fd, FS_IOC_FSGETXATTR, attributes);
  return new DataView(attributes.buffer);
}

/** Returns a folder's project id, 0 for none. @throws ENOTTY where the file system has no project ids. */
export function projectOf(path: string): number {
  using folder = openFolder(path);
  return readAttributes(folder, path).getUint32(projectAt, true);
}

/** Sets the project id of an empty folder, which all files created in it inherit. */
export function setProject(path: string, project: number): void {
  using folder = openFolder(path);
  const view = readAttributes(folder, path);
  const flags = view.getUint32(xflagsAt, true);
  view.setUint32(xflagsAt, (flags | FS_XFLAG_PROJINHERIT) >>> 0, true);
  view.setUint32(projectAt, project, true);
  const attributes = new Uint8Array(view.buffer);
  check("ioctl", `FS_IOC_FSSETXATTR of ${path}`, folder.fd, FS_IOC_FSSETXATTR, attributes);
}

// quotactl(2): QCMD(command, PRJQUOTA), struct dqblk of 64-bit fields: hard and soft limit of blocks of
// 1 KiB, bytes used, hard and soft limit of inodes, inodes used, two times; then the mask of valid fields.
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

/** Returns a project's usage and limit on a device. @throws ESRCH where project quotas are off. */
export function projectQuota(device: string, project: number): ProjectQuota {
  const quota = new BigUint64Array(dqblkBytes / 8);
  try {
    quotactl(Q_GETQUOTA, device, project, new Uint8Array(quota.buffer));
  } catch (error) {
    if (errnoOf(error) !== "ENOENT") throw error; // xfs: the project has no files yet
  }
  return { limitBytes: quota[0]! * blockBytes, usedBytes: quota[2]!, usedInodes: quota[5]! };
}

/**
 * True when project limits are enforced, not only counted. A trial would not show it: ext4 lets a process
 * with CAP_SYS_RESOURCE exceed them. @throws ENOSYS or ESRCH where there are no quotas.
 */
export function limitsProjects(device: string): boolean {
  const state = new Uint8Array(fsQuotaStatBytes);
  quotactl(Q_XGETQSTAT, device, 0, state);
  return (new DataView(state.buffer).getUint16(qsFlagsAt, true) & FS_QUOTA_PDQ_ENFD) !== 0;
}

/** Sets a project's limit; bytes: rounded up to a KiB, 0 removes it. */
export function setProjectLimit(device: string, project: number, bytes: bigint): void {
  const blocks = (bytes + blockBytes - 1n) / blockBytes;
  const quota = new BigUint64Array(dqblkBytes / 8);
  quota[0] = blocks;
  quota[1] = blocks;
  quota[8] = BigInt(QIF_BLIMITS);
  quotactl(Q_SETQUOTA, device, project, new Uint8Array(quota.buffer));
}
