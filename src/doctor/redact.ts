// Removes secrets from text that leaves the node in a support bundle.

const mark = "[redacted]";

/** Names of JSON keys, headers and variables whose values are secrets; those that name a file or folder are not. */
const words = "passw(?:or)?d|secret|token|credential|authorization|apikey|api[-_]key|creds";
const notAFile = '(?![\\w.-]*(?:file|path|dir|folder)["\\\\=])';
/** A whole name, from its first character: each is looked at only once. */
const secretName = `(?<![\\w.-])(?=[\\w.-]*(?:${words}))${notAFile}[\\w.-]+`;
/** Patterns, and what replaces them. */
export const rules: [RegExp, string][] = [
  [new RegExp(`("${secretName}"\\s*:\\s*)(?:"(?:[^"\\\\]|\\\\.)*"|-?\\d+)`, "gi"), `$1"${mark}"`],
  // JSON inside a JSON string.
  [new RegExp(`(\\\\"${secretName}\\\\"\\s*:\\s*\\\\")(?:[^"\\\\]|\\\\[^"])*`, "gi"), `$1${mark}`],
  [new RegExp(`("auth"\\s*:\\s*)"(?:[^"\\\\]|\\\\.)*"`, "gi"), `$1"${mark}"`],
  // A variable that is a JSON string, such as one of a list, ends with the string.
  [new RegExp(`("${secretName}=)(?:[^"\\\\]|\\\\.)*(?=")`, "gi"), `$1${mark}`],
  [new RegExp(`(${secretName}=)[^\\s"]+`, "gi"), `$1${mark}`],
  [/\b(Authorization:\s*\w+\s+)\S+/gi, `$1${mark}`],
  // The user and password of a URL: proxies and mirrors have them.
  [/(\b[a-z][a-z0-9+.-]{0,30}:\/\/)[^\s/@"']+@/gi, `$1${mark}@`],
];

export function redacted(text: string): string {
  return rules.reduce((left, [pattern, by]) => left.replace(pattern, by), text);
}
