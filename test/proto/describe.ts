// Describes a .proto file as main.go does: one fact per line.
import protobuf from "protobufjs";

/** @param text of a proto3 file with one package */
export function describe(text: string): string[] {
  const { root, package: name = "" } = protobuf.parse(text, { keepCase: true });
  root.resolveAll();
  const lines = [`package ${name}, syntax proto3`];
  visit(root.lookup(name) as protobuf.Namespace, lines);
  return lines;
}

function visit(namespace: protobuf.Namespace, lines: string[]): void {
  for (const item of namespace.nestedArray) {
    const name = item.fullName.slice(1);
    if (item instanceof protobuf.Type) {
      lines.push(`message ${name}`, ...item.fieldsArray.map((field) => fieldLine(name, field)));
      for (const range of item.reserved ?? []) lines.push(`reserved ${name} ${String(range)}`);
    }
    if (item instanceof protobuf.Enum) {
      for (const [value, number] of Object.entries(item.values)) {
        lines.push(`enum ${name}.${value} = ${number}`);
      }
    }
    if (item instanceof protobuf.Service) {
      lines.push(...item.methodsArray.map((method) => methodLine(name, method)));
    }
    if (item instanceof protobuf.Namespace) visit(item, lines);
  }
}

function fieldLine(message: string, field: protobuf.Field): string {
  const kind = kindOf(field.type, field.resolvedType);
  const type =
    field instanceof protobuf.MapField
      ? `map ${kindOf(field.keyType)} to ${kind}`
      : `${field.repeated ? "repeated" : "optional"} ${kind}`;
  const extra = [
    field.partOf ? `, oneof ${field.partOf.name}` : "",
    field.options?.["deprecated"] === true ? ", deprecated" : "",
    field.options?.["debug_redact"] === true ? ", debug_redact" : "",
    field.options?.["packed"] === undefined ? "" : `, packed ${field.options["packed"]}`,
  ];
  return `field ${message}.${field.name} = ${field.id}, ${type}${extra.join("")}`;
}

function kindOf(type: string, resolved: protobuf.Type | protobuf.Enum | null = null): string {
  if (resolved === null) return type;
  const kind = resolved instanceof protobuf.Enum ? "enum" : "message";
  return `${kind} ${resolved.fullName.slice(1)}`;
}

function methodLine(service: string, method: protobuf.Method): string {
  const request = method.resolvedRequestType?.fullName.slice(1);
  const response = method.resolvedResponseType?.fullName.slice(1);
  const streams = [method.requestStream, method.responseStream].map((is) => (is ? "stream " : ""));
  return `rpc ${service}.${method.name}(${streams[0]}${request}) returns (${streams[1]}${response})`;
}

/** Lines of one side only, marked with it; none where both say the same. */
export function differences(ours: readonly string[], theirs: readonly string[]): string[] {
  const onlyOurs = ours.filter((line) => !theirs.includes(line)).map((line) => `ours: ${line}`);
  const onlyTheirs = theirs.filter((line) => !ours.includes(line)).map((line) => `theirs: ${line}`);
  return [...onlyOurs, ...onlyTheirs];
}
