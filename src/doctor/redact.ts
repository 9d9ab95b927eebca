// Removes secrets from text that leaves the node in a support bundle.

const mark = "[redacted]";

/** Values of JSON keys, and of headers and variables, with such names. Paths stay: they are no secrets. */
const secretName =
  "[\\w.-]*(?:passw(?:or)?d|secret|token|credential|authorization|apikey|api[-_]key|creds)[\\w.-]*";
const rules: [RegExp, string][] = [
  [new RegExp(`("${secretName}"\\s*:\\s*)"(?!/)(?:[^"\\\\]|\\\\.)*"`, "gi"), `$1"${mark}"`],
  [new RegExp(`("auth"\\s*:\\s*)"(?:[^"\\\\]|\\\\.)*"`, "gi"), `$1"${mark}"`],
  [new RegExp(`\\b(${secretName}=)(?!/)[^\\s",]+`, "gi"), `$1${mark}`],
  [/\b(Authorization:\s*\w+\s+)\S+/gi, `$1${mark}`],
  // The user and password of a URL: proxies and mirrors have them.
  [/(\b[a-z][a-z0-9+.-]*:\/\/)[^\s/@"']+@/gi, `$1${mark}@`],
];

export function redacted(text: string): string {
  return rules.reduce((left, [pattern, by]) => left.replace(pattern, by), text);
}
