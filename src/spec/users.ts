// Resolves the user and groups of a container's process from CRI's security context, the image's USER and its
// passwd and group files: untrusted input, so reading is bounded and tolerates malformed lines.
import { toBigInt } from "../base/int64.ts";
import { runtime } from "../proto/messages.js";
import type { LinuxContainerSecurityContext } from "../proto/types.ts";
import type { OciUser } from "./oci_types.ts";
import { invalid } from "./refusals.ts";

/** Bound the lines read from a passwd or group file, and a process's groups (Linux NGROUPS_MAX). */
const linesMax = 100_000;
/** Those of a line that are read; a line may be one row of colons. */
const fieldsMax = 4;
const groupsMax = 65_536;
const idMax = 0xffff_fffen; // 2^32-1 means "no change" to setuid(2)

type Account = { name: string; uid: number; gid: number };
/** members: separated by commas. */
type Group = { name: string; gid: number; members: string };

type UserInput = {
  security: LinuxContainerSecurityContext;
  /** The image's USER: "", "user", "uid", "user:group", "uid:gid". */
  imageUser: string;
  passwd: string;
  group: string;
};

/**
 * Returns the uid, gid and groups of a container's process.
 * @throws CriError INVALID_ARGUMENT for a name that the image does not define, an id out of range, a group
 * without a user, or an unknown supplemental_groups_policy.
 */
export function resolveUser(input: UserInput): OciUser {
  const { security } = input;
  if (security.run_as_group && !security.run_as_user && !security.run_as_username) {
    throw invalid("run_as_group is set without run_as_user or run_as_username");
  }
  const [imageUser = "", imageGroup = ""] = input.imageUser.split(":", 2);
  const requested = requestedUser(security);
  const account = findAccount(requested ?? imageUser, input.passwd);
  let gid = account.gid;
  if (security.run_as_group) {
    gid = id(toBigInt(security.run_as_group.value), "run_as_group");
  } else if (requested === undefined && imageGroup !== "") {
    gid = findGroup(imageGroup, input.group);
  }
  // Kubernetes' node e2e suite expects this order in a pod's status.
  const groups = new Set<number>([gid]);
  if (mergesImageGroups(security)) {
    for (const entry of parseGroups(input.group)) {
      if (account.name !== "" && hasMember(entry, account.name)) groups.add(entry.gid);
    }
  }
  for (const value of security.supplemental_groups ?? []) {
    groups.add(id(toBigInt(value), "supplemental_groups"));
  }
  if (groups.size > groupsMax) throw invalid(`more than ${groupsMax} supplemental groups`);
  return { uid: account.uid, gid, additionalGids: [...groups] };
}

/** Returns the ids in the security context itself; 0 for an absent one. */
export function runAs(security: LinuxContainerSecurityContext): { uid: number; gid: number } {
  const { run_as_user: user, run_as_group: group } = security;
  return {
    uid: user ? id(toBigInt(user.value), "run_as_user") : 0,
    gid: group ? id(toBigInt(group.value), "run_as_group") : 0,
  };
}

/** Converts an image's USER to CRI's fields: a number to uid, a name, which stays unresolved, to username. */
export function imageUserOf(user: string): { uid?: bigint; username?: string } {
  const name = user.split(":", 1)[0]!;
  if (name === "") return {};
  return /^\d{1,18}$/.test(name) ? { uid: BigInt(name) } : { username: name }; // CRI: an int64
}

function requestedUser(security: LinuxContainerSecurityContext): string | undefined {
  const { run_as_user: user, run_as_username: name } = security;
  return user ? String(id(toBigInt(user.value), "run_as_user")) : name || undefined;
}

function mergesImageGroups(security: LinuxContainerSecurityContext): boolean {
  const policy = security.supplemental_groups_policy ?? 0;
  switch (policy) {
    case runtime.v1.SupplementalGroupsPolicy.Merge:
      return true;
    case runtime.v1.SupplementalGroupsPolicy.Strict:
      return false;
    default:
      throw invalid(`supplemental_groups_policy ${String(policy)} is neither Merge nor Strict`);
  }
}

function findAccount(user: string, passwd: string): Account {
  if (user === "") user = "0";
  const numeric = /^\d+$/.test(user) ? id(BigInt(user), "user") : undefined;
  for (const account of parsePasswd(passwd)) {
    if (numeric === undefined ? account.name === user : account.uid === numeric) return account;
  }
  if (numeric !== undefined) return { name: "", uid: numeric, gid: 0 };
  throw invalid(`user "${user}" is not in the image's /etc/passwd`);
}

function findGroup(group: string, text: string): number {
  if (/^\d+$/.test(group)) return id(BigInt(group), "group");
  for (const entry of parseGroups(text)) if (entry.name === group) return entry.gid;
  throw invalid(`group "${group}" is not in the image's /etc/group`);
}

function* parsePasswd(text: string): Generator<Account> {
  for (const fields of records(text)) {
    const uid = parseId(fields[2]);
    const gid = parseId(fields[3]);
    if (fields[0] && uid !== undefined && gid !== undefined) yield { name: fields[0], uid, gid };
  }
}

function* parseGroups(text: string): Generator<Group> {
  for (const fields of records(text)) {
    const gid = parseId(fields[2]);
    if (!fields[0] || gid === undefined) continue;
    yield { name: fields[0], gid, members: fields[3] ?? "" };
  }
}

function hasMember({ members }: Group, name: string): boolean {
  if (!members.includes(name)) return false; // without splitting the lists of a huge file
  return members.split(",").some((member) => member.trim() === name);
}

function* records(text: string): Generator<string[]> {
  let start = 0;
  for (let line = 0; line < linesMax && start < text.length; line++) {
    let end = text.indexOf("\n", start);
    if (end === -1) end = text.length;
    const record = text.slice(start, end).trim();
    if (record !== "" && !record.startsWith("#")) yield record.split(":", fieldsMax);
    start = end + 1;
  }
}

function parseId(text: string | undefined): number | undefined {
  if (text === undefined || !/^\d{1,10}$/.test(text)) return undefined;
  const value = Number(text);
  return value > Number(idMax) ? undefined : value;
}

function id(value: bigint, what: string): number {
  if (value < 0n || value > idMax) throw invalid(`${what} ${value} is outside 0–${idMax}`);
  return Number(value);
}
