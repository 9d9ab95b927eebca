// Parses Localhost seccomp profiles (OCI runtime specification, config-linux.md). Validated here because a
// runtime reports an error only when the container starts.
import * as v from "valibot";
import { messageOf } from "../base/errors.ts";
import { jsonValue, withoutNulls } from "../base/json.ts";
import { check } from "../base/schema.ts";
import { bigIntegers, type OciSeccomp } from "./oci_types.ts";
import { invalid } from "./refusals.ts";

const Action = v.pipe(
  v.string(),
  v.regex(/^SCMP_ACT_(KILL|KILL_PROCESS|KILL_THREAD|TRAP|ERRNO|TRACE|ALLOW|LOG|NOTIFY)$/),
);
const Uint64 = v.pipe(v.bigint(), v.minValue(0n), v.maxValue(2n ** 64n - 1n));
const Errno = v.optional(v.pipe(v.number(), v.integer(), v.minValue(0), v.maxValue(0xffff)));

const Profile = v.object({
  defaultAction: Action,
  defaultErrnoRet: Errno,
  // Any well-formed name: libseccomp may know more architectures than the specification.
  architectures: v.optional(v.array(v.pipe(v.string(), v.regex(/^SCMP_ARCH_[A-Z0-9_]+$/)))),
  flags: v.optional(v.array(v.pipe(v.string(), v.regex(/^SECCOMP_FILTER_FLAG_[A-Z_]+$/)))),
  listenerPath: v.optional(v.string()),
  listenerMetadata: v.optional(v.string()),
  syscalls: v.optional(
    v.array(
      v.object({
        names: v.pipe(v.array(v.pipe(v.string(), v.minLength(1))), v.minLength(1)),
        action: Action,
        errnoRet: Errno,
        args: v.optional(
          v.array(
            v.object({
              index: v.pipe(v.number(), v.integer(), v.minValue(0), v.maxValue(5)),
              value: Uint64,
              valueTwo: v.optional(Uint64),
              op: v.pipe(v.string(), v.regex(/^SCMP_CMP_(NE|LT|LE|EQ|GE|GT|MASKED_EQ)$/)),
            }),
          ),
        ),
      }),
    ),
  ),
});

/** @throws CriError INVALID_ARGUMENT with the file, the field and the reason. */
export function parseSeccompProfile(file: string, text: string | undefined): OciSeccomp {
  const broken = (why: string, cause?: unknown) =>
    invalid(`seccomp profile ${file}: ${why}`, cause);
  if (text === undefined) throw broken("cannot be read");
  let json: unknown;
  try {
    json = jsonValue(text, bigIntegers);
  } catch (cause) {
    throw broken(`is not JSON: ${messageOf(cause)}`, cause);
  }
  const result = check(Profile, withoutNulls(json));
  if (result.success) return result.output;
  const [issue] = result.issues;
  throw broken(`${v.getDotPath(issue) ?? "it"}: ${issue.message}`);
}
