// Examines a node for what keeps its pods from running; each finding says how to mend it.
import type { Config, LoadedConfig } from "../base/config.ts";
import { messageOf } from "../base/errors.ts";
import {
  checkBridge,
  checkCgroupDriver,
  checkCgroups,
  checkClock,
  checkForwarding,
  checkKernel,
  checkOverlay,
} from "./kernel.ts";
import { checkBudgets } from "./budgets.ts";
import { checkCollector } from "./collector.ts";
import { forbidden, type Finding, type Node } from "./node.ts";
import {
  checkAddresses,
  checkDisk,
  checkLogDisk,
  checkNetwork,
  checkPrograms,
  checkRuntimes,
} from "./pods.ts";
import { checkRegistries } from "./registries.ts";
import { checkSecrets } from "./secrets.ts";

type Check = () => Finding | Finding[] | Promise<Finding | Finding[]>;

/** Makes all checks; changes nothing. load: reads the configuration; if it throws, checks that need it are left out. */
export async function examine(node: Node, load: () => LoadedConfig): Promise<Finding[]> {
  const { findings, loaded } = checkConfig(node, load);
  const checks: [string, Check][] = [
    ["kernel", () => checkKernel(node)],
    ["br_netfilter", () => checkBridge(node)],
    ["ip_forward", () => checkForwarding(node)],
    ["cgroups", () => checkCgroups(node)],
    ["clock", () => checkClock(node)],
    ["kernel budgets", () => checkBudgets(node)],
    ["disk of logs", () => checkLogDisk(node)],
  ];
  if (loaded !== undefined) {
    const { config } = loaded;
    checks.push(
      ["overlayfs", () => checkOverlay(node, config)],
      ["runtime name", () => checkRuntimeName(config)],
      ["cgroup driver", () => checkCgroupDriver(node, config)],
      ["programs", () => checkPrograms(node, config)],
      ["runtimes", () => checkRuntimes(node, config)],
      ["pod network", () => checkNetwork(node, config)],
      ["addresses", () => checkAddresses(node, config)],
      ["disk of graph", () => checkDisk(node, config)],
      ["secrets", () => checkSecrets(node, config)],
      ["registries", () => checkRegistries(node, config)],
      ["trace collector", () => checkCollector(node, config)],
    );
  }
  for (const [name, check] of checks) findings.push(...(await outcomeOf(node, name, check)));
  return findings;
}

/** Makes one check; a check that cannot be made is a finding, too. */
async function outcomeOf(node: Node, check: string, make: Check): Promise<Finding[]> {
  try {
    return [await make()].flat();
  } catch (error) {
    const mend = "mend this first; the check could not be made";
    return [
      forbidden(node, check, error) ?? { check, state: "fail", detail: messageOf(error), mend },
    ];
  }
}

/** Tells who looks for isulad-ts why its node says containerd. */
function checkRuntimeName({ runtimeName }: Config): Finding[] {
  if (runtimeName === "isulad-ts") return [];
  const detail = `CRI calls the runtime ${runtimeName} ("runtime-name"): container ids in pod statuses begin with ${runtimeName}://`;
  return [{ check: "runtime name", state: "ok", detail }];
}

function checkConfig(
  node: Node,
  load: () => LoadedConfig,
): { findings: Finding[]; loaded?: LoadedConfig } {
  const check = "configuration";
  const mend = "correct the file; isulad-ts config default --explain has the keys";
  try {
    const loaded = load();
    const { warnings, files } = loaded;
    const findings = warnings.map((detail): Finding => ({ check, state: "warn", detail, mend }));
    const detail = files.join(" ") || "no file: all defaults";
    return { findings: findings.length > 0 ? findings : [{ check, state: "ok", detail }], loaded };
  } catch (error) {
    const fault: Finding = { check, state: "fail", detail: messageOf(error), mend };
    return { findings: [forbidden(node, check, error) ?? fault] };
  }
}
