// Logs of containers as tests read them.

/** What a container wrote: its log without time, stream and tag, partial lines joined. */
export function logText(log: string): string {
  return log.replaceAll(/^\S+ (?:stdout|stderr) ([PF]) (.*)\n/gm, (_, tag: string, text: string) =>
    tag === "F" ? `${text}\n` : text,
  );
}
