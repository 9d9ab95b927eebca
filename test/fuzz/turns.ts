// Makes programs that misbehave by turns: a CNI plugin and an OCI runtime in front of the real ones. Each
// call takes one of sixteen turns, chosen by its arguments; a round writes the files of the turns anew. While
// the file "calm" exists they behave, so that everything they disturbed can be undone.
import { chmodSync, mkdirSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { changedJson } from "../layer/fuzz.ts";
import { type Chance, hostileString, pick } from "./values.ts";

const turnsCount = 16;

export type Turns = {
  /** The program's path. */
  path: string;
  /** New turns, of which so many of sixteen are hostile. */
  shuffle(chance: Chance, hostile: number): void;
  calm(isCalm: boolean): void;
};

/** real: what it stands for; templates: what the real one prints, or might. */
export function makeTurns(dir: string, name: string, real: string, templates: object[]): Turns {
  const folder = join(dir, `turns-${name}`);
  mkdirSync(folder, { recursive: true });
  const path = join(dir, name);
  const calmFile = join(folder, "calm");
  writeFileSync(path, script(folder, real));
  chmodSync(path, 0o755);
  const calm = (isCalm: boolean) => {
    if (isCalm) writeFileSync(calmFile, "");
    else rmSync(calmFile, { force: true });
  };
  calm(true);
  const shuffle = (chance: Chance, hostile: number) => {
    for (let turn = 0; turn < turnsCount; turn++) {
      writeFileSync(join(folder, `${turn}.out`), hostileOutput(chance, templates));
      writeFileSync(join(folder, `${turn}.err`), hostileOutput(chance, templates));
      writeFileSync(join(folder, `${turn}.plan`), turn < hostile ? planOf(chance) : "well 0 0 0\n");
    }
  };
  return { path, shuffle, calm };
}

/** "when delay code signal". */
function planOf(chance: Chance): string {
  const when = pick(chance, ["before", "before", "after"]);
  const delay = pick(chance, ["0", "0", "0", "0.3", "600"]);
  const code = pick(chance, [0, 1, 1, 1, 2, 126, 127, 255]);
  const signal = pick(chance, ["0", "0", "0", "KILL", "SEGV", "STOP"]);
  return `${when} ${delay} ${code} ${signal}\n`;
}

/** JSON with values changed, text by chance, or bytes that are neither. */
export function hostileOutput(chance: Chance, templates: object[]): Buffer {
  const json = () =>
    Buffer.from(JSON.stringify(changedJson(chance, pick(chance, templates), 0)) ?? "");
  switch (chance(5)) {
    case 0:
      return Buffer.from(hostileString(chance));
    case 1:
      return Buffer.from(Array.from({ length: chance(200) }, () => chance(256)));
    case 2: {
      const bytes = json();
      return bytes.subarray(0, chance(bytes.length + 1));
    }
    default:
      return json();
  }
}

function script(folder: string, real: string): string {
  return `#!/bin/sh
[ -e ${folder}/calm ] && exec ${real} "$@"
n=$(printf '%s ' "$CNI_CONTAINERID" "$CNI_COMMAND" "$@" | cksum)
n=$((\${n%% *} % ${turnsCount}))
read -r when delay code signal <${folder}/$n.plan
[ "$when" = well ] && exec ${real} "$@"
[ "$when" = after ] && ${real} "$@"
log= previous=
for word in "$@"; do
  [ "$previous" = --log ] && log=$word
  previous=$word
done
[ -n "$log" ] && cat ${folder}/$n.err >>"$log"
cat ${folder}/$n.out
cat ${folder}/$n.err >&2
sleep "$delay"
[ "$signal" = 0 ] || kill -"$signal" $$
exit "$code"
`;
}
