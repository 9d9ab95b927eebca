// Lists the equivalents of Docker's and iSulad's daemon.json.
import { allKeys } from "../base/config_keys.ts";
import { converted, metricsAddress, none, same, type Rule, type Rules } from "./rules.ts";

/** iSulad's keys, and those that Docker shares with it. */
const isulad: Rules = Object.fromEntries(
  allKeys.flatMap((key) => {
    const rule = "why" in key ? none(key.why) : same(key.key);
    return [key.key, ...key.also].map((name): [string, Rule] => [name, rule]);
  }),
);

/** Converts `debug`: true sets the level to debug; false leaves it to the source's log-level. */
const debug: Rule = {
  to: "log-level",
  apply: ({ value }, values) => {
    if (value !== true) return { why: "it is off, as in isulad-ts" };
    values["log-level"] = "DEBUG";
    return "log-level";
  },
};

const ownFolder = "isulad-ts's own folder: Docker's data is not read";

export const dockerOwnRules: Rules = {
  "data-root": none(`graph is ${ownFolder}`),
  "exec-root": none(`state is ${ownFolder}`),
  debug,
  "exec-opts": converted(
    "systemd-cgroup",
    (value) => Array.isArray(value) && value.includes("native.cgroupdriver=systemd"),
  ),
  "oom-score-adjust": same("oom-score"),
  "metrics-addr": metricsAddress,
  features: converted("enable-cdi", (value) => (value as { cdi?: unknown }).cdi === true),
  runtimes: converted("runtimes", (value) =>
    Object.fromEntries(
      Object.entries(value as Record<string, Record<string, unknown>>).map(([name, entry]) => {
        const { runtimeArgs, ...rest } = entry;
        return [name, { ...rest, ...(runtimeArgs ? { "runtime-args": runtimeArgs } : {}) }];
      }),
    ),
  ),
  "live-restore": none("containers always outlive the daemon"),
  hosts: converted("hosts", (value) =>
    (value as string[]).filter((host) => host.startsWith("unix:///") && !host.includes("docker")),
  ),
};

export const dockerRules: Rules = { ...isulad, ...dockerOwnRules };
