// Makes requests about pods, containers and images that exist, from the messages' types: a field is
// filled by its name, so that the fields of a new RPC are filled as those of an old one.
import { join } from "node:path";
import protobuf from "protobufjs";
import { type Chance, mutate, pick } from "./values.ts";
import { encode, TooLarge, type Rpc, type Tree, type Value } from "./wire.ts";
import { type Ground, harmOf } from "./guard.ts";

/** What requests may be about. */
export type World = Ground & {
  pods: string[];
  containers: string[];
  /** References that pull, or are there. */
  images: string[];
  /** Runtime handlers; "" is the default one. */
  handlers: string[];
  /** Files in the ground: archives and what is none. */
  files: string[];
};

const commands = [
  ["sleep", "600"],
  ["true"],
  ["sh", "-c", "trap 'exit 3' TERM; echo up; sleep 600 & wait"],
  ["sh", "-c", "echo out; echo err >&2; exit 7"],
  ["cat"],
  ["sh", "-c", "printf '\\355\\240\\200\\377'; exit 1"],
];
const [inPod, perContainer, onNode] = [0n, 1n, 2n];

type Filler = (world: World, chance: Chance, field: protobuf.Field) => Value | undefined;

/** By the field's name; what is not here stays away, unless it is a message with such a field. */
const fillers: { [field: string]: Filler } = {
  pod_sandbox_id: ({ pods }, chance) => idOf(pods, chance),
  container_id: ({ containers }, chance) => idOf(containers, chance),
  container_ids: ({ containers }, chance) => [idOf(containers, chance)],
  id: ({ pods, containers }, chance) => idOf([...pods, ...containers], chance),
  image: (world, chance, field) => imageOf(world, chance, field),
  images: ({ images }, chance) => [pick(chance, images), pick(chance, images)],
  path: fileOf,
  location: ({ dir }, chance) => join(dir, `checkpoint-${chance(50)}.tar`),
  output_path: ({ dir }) => dir,
  checkpoint_path: ({ dir }) => dir,
  cmd: (_, chance) => pick(chance, commands),
  timeout: (_, chance) => BigInt(chance(3)),
  verbose: (_, chance) => chance(2) === 0,
  force: (_, chance) => chance(2) === 0,
  dry_run: (_, chance) => chance(2) === 0,
  stdin: (_, chance) => chance(2) === 0,
  stdout: (_, chance) => chance(2) === 0,
  tty: (_, chance) => chance(4) === 0,
  port: () => [80n],
  runtime_handler: ({ handlers }, chance) => pick(chance, handlers),
  config: (world, chance, field) =>
    field.type.endsWith("PodSandboxConfig") ? podOf(world, chance) : containerOf(world, chance),
  sandbox_config: podOf,
  linux: (_, chance) => resourcesOf(chance),
  resources: (_, chance) => resourcesOf(chance),
  runtime_config: () => ({ network_config: { pod_cidr: "10.201.0.0/24" } }),
};

function idOf(ids: string[], chance: Chance): Value {
  if (ids.length === 0) return "none";
  const id = pick(chance, ids);
  return chance(6) === 0 ? id.slice(0, 12) : id;
}

function imageOf({ images }: World, chance: Chance, field: protobuf.Field): Value {
  const image = pick(chance, images);
  return field.type === "string" ? image : { image };
}

function fileOf({ dir, files }: World, chance: Chance): Value {
  return chance(4) === 0 ? join(dir, `saved-${chance(20)}.tar`) : pick(chance, files);
}

function podOf({ dir, cgroupParent }: World, chance: Chance): Tree {
  const name = `pod-${chance(400)}`;
  const network = chance(2) === 0 ? onNode : inPod;
  const tree: Tree = {
    metadata: { name, uid: `uid-${name}`, namespace: "fuzz", attempt: BigInt(chance(2)) },
    log_directory: join(dir, "logs", name),
    labels: [["app", "fuzz"]],
    annotations: [["a", "b"]],
    linux: {
      cgroup_parent: cgroupParent,
      security_context: { namespace_options: { network, pid: perContainer } },
    },
  };
  if (network === inPod) {
    tree["hostname"] = name;
    tree["dns_config"] = { servers: ["10.0.0.10"], searches: ["a.b"], options: ["ndots:5"] };
    if (chance(4) === 0) {
      tree["port_mappings"] = [{ container_port: 80n, host_port: 61_000n + BigInt(chance(100)) }];
    }
  }
  return tree;
}

function containerOf({ dir, images }: World, chance: Chance): Tree {
  const name = `c-${chance(1000)}`;
  const image = chance(2) === 0 ? images[0]! : pick(chance, images);
  const tree: Tree = {
    metadata: { name, attempt: BigInt(chance(2)) },
    image: { image, user_specified_image: image },
    command: pick(chance, commands),
    log_path: `${name}.log`,
    labels: [["app", "fuzz"]],
    envs: [{ key: "A", value: Buffer.from("b") }],
    linux: {
      security_context: { namespace_options: { network: onNode, pid: perContainer } },
    },
  };
  if (chance(3) === 0) {
    tree["mounts"] = [{ container_path: "/mnt", host_path: join(dir, "volume"), readonly: true }];
  }
  if (chance(6) === 0) tree["devices"] = [{ container_path: "/dev/n", host_path: "/dev/null" }];
  if (chance(6) === 0) (tree["linux"] as Tree)["resources"] = resourcesOf(chance);
  return tree;
}

function resourcesOf(chance: Chance): Tree {
  return {
    cpu_period: 100_000n,
    cpu_quota: BigInt(10_000 + chance(90_000)),
    cpu_shares: BigInt(2 + chance(2_000)),
    memory_limit_in_bytes: BigInt(64 << 20),
  };
}

/** A request as a kubelet might send it. */
export function plausible(type: protobuf.Type, world: World, chance: Chance): Tree {
  const tree: Tree = {};
  for (const field of type.fieldsArray) {
    const filler = fillers[field.name];
    const value = filler?.(world, chance, field);
    if (value !== undefined) tree[field.name] = value;
    else if (field.name === "filter" && chance(2) === 0) {
      tree["filter"] = plausible(field.resolvedType as protobuf.Type, world, chance);
    }
  }
  return tree;
}

export type Request = { bytes: Buffer; mutations: number };

/** Half of them are plausible, or nearly. @param refused hears why a request was not to be sent. */
export function requestOf(
  rpc: Rpc,
  world: World,
  chance: Chance,
  refused: (harm: string) => void,
): Request {
  const kind = chance(10);
  const mutations = kind < 2 ? 0 : kind < 5 ? 1 : 2 + chance(5);
  for (let tries = 0; tries < 20; tries++) {
    const tree = plausible(rpc.request, world, chance);
    for (let left = mutations; left > 0; left--) mutate(rpc.request, tree, chance);
    withinGround(rpc.request, tree, world.dir);
    const whole = encodeIfPossible(rpc.request, tree);
    if (whole === undefined) continue;
    const bytes =
      mutations > 1 && chance(15) === 0 ? whole.subarray(0, chance(whole.length + 1)) : whole;
    // The daemon takes 16 MiB; few need be larger, or nearly.
    if (bytes.length > 1 << 20 && chance(50) > 0) continue;
    const harm = harmOf(rpc, bytes, world);
    if (harm === undefined) return { bytes, mutations };
    refused(harm);
  }
  return { bytes: Buffer.alloc(0), mutations: 0 };
}

/** undefined: its lists of lists came to more than anybody would send. */
function encodeIfPossible(type: protobuf.Type, tree: Tree): Buffer | undefined {
  try {
    return encode(type, tree);
  } catch (error) {
    if (error instanceof TooLarge) return undefined;
    throw error;
  }
}

const hostPaths = /^(host_path|log_directory|location|output_path|checkpoint_path|path)$/;

/** Puts most hostile paths under the ground's folder: the guard would refuse them otherwise. */
function withinGround(type: protobuf.Type, tree: Tree, dir: string): void {
  for (const field of type.fieldsArray) {
    const value = tree[field.name];
    if (value === undefined || field.map) continue;
    for (const one of field.repeated ? (value as Value[]).slice(0, 8) : [value]) {
      if (field.resolvedType instanceof protobuf.Type) {
        withinGround(field.resolvedType, one as Tree, dir);
      }
    }
    if (!hostPaths.test(field.name) || typeof value !== "string" || value === "") continue;
    const isHarmless = value.startsWith(dir) || value === "/dev/null" || value.includes("..");
    if (!isHarmless) tree[field.name] = `${dir}/${value}`;
  }
}
