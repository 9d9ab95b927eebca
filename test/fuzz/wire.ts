// Encodes requests that no generated class would send, and checks responses as strictly as Go does. Both work
// from the .proto files, so that they cover a new RPC or field without a change here.
import { readFileSync } from "node:fs";
import { join } from "node:path";
import protobuf from "protobufjs";

/** A string field's bytes, which need not be UTF-8. */
export class Raw {
  readonly bytes: Uint8Array;
  constructor(bytes: Uint8Array) {
    this.bytes = bytes;
  }
}

export type Scalar = string | number | bigint | boolean | Uint8Array | Raw;
export type Value = Scalar | Tree | Value[] | [Value, Value][];
/** A message by field names; a map is a list of pairs, whose keys may repeat. */
export type Tree = { [field: string]: Value };
/** Bytes of fields that the message's type does not have. */
export const unknownFields = "$unknown";

export type Rpc = {
  name: string;
  /** "/runtime.v1.RuntimeService/Version" */
  path: string;
  request: protobuf.Type;
  response: protobuf.Type;
  stream: boolean;
};

const protos = join(import.meta.dirname, "../../proto");

function loadRoot(): protobuf.Root {
  const root = new protobuf.Root();
  for (const file of ["cri.proto", "isulad.proto"]) {
    protobuf.parse(readFileSync(join(protos, file), "utf8"), root, { keepCase: true });
  }
  root.resolveAll();
  return root;
}

const root = loadRoot();
const services = [
  "runtime.v1.RuntimeService",
  "runtime.v1.ImageService",
  "isulad.v1.NodeService",
].map((name) => root.lookupService(name));

export const rpcs: Rpc[] = services.flatMap((service) =>
  service.methodsArray.map((method) => ({
    name: method.name,
    path: `/${service.fullName.slice(1)}/${method.name}`,
    request: method.resolvedRequestType!,
    response: method.resolvedResponseType!,
    stream: method.responseStream ?? false,
  })),
);

export function rpcOf(name: string): Rpc {
  const found = rpcs.find((rpc) => rpc.name === name);
  if (found === undefined) throw new Error(`no RPC is called ${name}`);
  return found;
}

// -- encoding -------------------------------------------------------------------------------------

const [varintWire, bits64Wire, bytesWire, bits32Wire] = [0, 1, 2, 5];

function wireOf(type: string, isEnum = false): number {
  if (isEnum) return varintWire;
  if (["double", "fixed64", "sfixed64"].includes(type)) return bits64Wire;
  if (["float", "fixed32", "sfixed32"].includes(type)) return bits32Wire;
  return /^(u?int|sint|bool)/.test(type) ? varintWire : bytesWire;
}

function varint(value: bigint): Buffer {
  const bytes: number[] = [];
  let rest = BigInt.asUintN(64, value);
  for (; rest >= 0x80n; rest >>= 7n) bytes.push(Number(rest & 0x7fn) | 0x80);
  bytes.push(Number(rest));
  return Buffer.from(bytes);
}

function tag(id: number, wire: number): Buffer {
  return varint((BigInt(id) << 3n) | BigInt(wire));
}

function withLength(bytes: Uint8Array): Buffer {
  return Buffer.concat([varint(BigInt(bytes.length)), bytes]);
}

export function unknownField(id: number, bytes: Uint8Array): Buffer {
  return Buffer.concat([tag(id, bytesWire), withLength(bytes)]);
}

/** Lists of lists multiply; the daemon takes 16 MiB. */
const encodedBytesMax = 64 << 20;

/** A message that is too large to be built. */
export class TooLarge extends Error {}

export function encode(type: protobuf.Type, tree: Tree): Buffer {
  const parts: Uint8Array[] = [];
  let bytes = 0;
  for (const field of type.fieldsArray) {
    const value = tree[field.name];
    if (value === undefined) continue;
    const isList = field.repeated || field.map;
    for (const one of isList ? (value as Value[]) : [value]) {
      const part = encodeField(field, one);
      bytes += part.length;
      if (bytes > encodedBytesMax) throw new TooLarge();
      parts.push(part);
    }
  }
  const unknown = tree[unknownFields];
  if (unknown !== undefined) parts.push(unknown as Uint8Array);
  return Buffer.concat(parts);
}

function encodeField(field: protobuf.Field, value: Value): Buffer {
  const { type, resolvedType, id } = field;
  if (field instanceof protobuf.MapField) {
    const [key, inner] = value as [Value, Value];
    const entry = [encodeOne(1, field.keyType, null, key), encodeOne(2, type, resolvedType, inner)];
    return Buffer.concat([tag(id, bytesWire), withLength(Buffer.concat(entry))]);
  }
  return encodeOne(id, type, resolvedType, value);
}

function encodeOne(
  id: number,
  type: string,
  resolved: protobuf.Field["resolvedType"],
  value: Value,
) {
  const isEnum = resolved instanceof protobuf.Enum;
  const wire = wireOf(type, isEnum);
  return Buffer.concat([tag(id, wire), encodeScalar(wire, type, resolved, value)]);
}

function encodeScalar(
  wire: number,
  type: string,
  resolved: protobuf.Field["resolvedType"],
  value: Value,
): Buffer {
  if (resolved instanceof protobuf.Type) return withLength(encode(resolved, value as Tree));
  if (wire === varintWire) return varint(BigInt(value as number | bigint | boolean));
  if (wire === bytesWire) {
    if (value instanceof Raw) return withLength(value.bytes);
    return withLength(typeof value === "string" ? Buffer.from(value) : (value as Uint8Array));
  }
  const bytes = Buffer.alloc(wire === bits64Wire ? 8 : 4);
  if (type === "double") bytes.writeDoubleLE(Number(value));
  else if (type === "float") bytes.writeFloatLE(Number(value));
  else if (wire === bits64Wire)
    bytes.writeBigUInt64LE(BigInt.asUintN(64, BigInt(value as number | bigint)));
  else bytes.writeUInt32LE(Number(value) >>> 0);
  return bytes;
}

// -- strict decoding ------------------------------------------------------------------------------

const utf8 = new TextDecoder("utf-8", { fatal: true });

/** What Go's protobuf would refuse of a message, each with its field; also fields that nobody knows. */
export function faultsOf(type: protobuf.Type, bytes: Uint8Array, at = type.name): string[] {
  const faults: string[] = [];
  try {
    const reader = protobuf.Reader.create(bytes);
    while (reader.pos < reader.len) readField(type, reader, at, faults);
  } catch (error) {
    faults.push(`${at}: ${String(error)}`);
  }
  return faults;
}

function readField(
  type: protobuf.Type,
  reader: protobuf.Reader,
  at: string,
  faults: string[],
): void {
  const head = reader.uint32();
  const [id, wire] = [head >>> 3, head & 7];
  const field = type.fieldsById[id];
  if (field === undefined) {
    faults.push(`${at}: unknown field ${id}`);
    reader.skipType(wire);
    return;
  }
  const place = `${at}.${field.name}`;
  const isEnum = field.resolvedType instanceof protobuf.Enum;
  const expected = field.map ? bytesWire : wireOf(field.type, isEnum);
  const isPacked = field.repeated && wire === bytesWire && expected !== bytesWire;
  if (wire !== expected && !isPacked) faults.push(`${place}: wire type ${wire}, not ${expected}`);
  if (wire !== bytesWire || isPacked) {
    reader.skipType(wire);
    return;
  }
  const bytes = reader.bytes();
  if (field instanceof protobuf.MapField) readEntry(field, bytes, place, faults);
  else readBytes(field.type, field.resolvedType, bytes, place, faults);
}

function readEntry(
  field: protobuf.MapField,
  bytes: Uint8Array,
  at: string,
  faults: string[],
): void {
  const reader = protobuf.Reader.create(bytes);
  while (reader.pos < reader.len) {
    const head = reader.uint32();
    if ((head & 7) !== bytesWire) {
      reader.skipType(head & 7);
      continue;
    }
    const isKey = head >>> 3 === 1;
    const [type, resolved] = isKey ? [field.keyType, null] : [field.type, field.resolvedType];
    readBytes(type, resolved, reader.bytes(), `${at}[${isKey ? "key" : "value"}]`, faults);
  }
}

function readBytes(
  type: string,
  resolved: protobuf.Field["resolvedType"],
  bytes: Uint8Array,
  at: string,
  faults: string[],
): void {
  if (resolved instanceof protobuf.Type) {
    faults.push(...faultsOf(resolved, bytes, at));
  } else if (type === "string") {
    try {
      utf8.decode(bytes);
    } catch {
      const hex = Buffer.from(bytes.subarray(0, 60)).toString("hex");
      faults.push(`${at}: a string that is not UTF-8: ${hex}`);
    }
  }
}
