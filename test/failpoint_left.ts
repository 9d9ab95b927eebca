// Starts a call that hangs, so that a kill of the process that waits for it leaves something behind.
import { until } from "./expect.ts";
import { type Scope, takeSnapshot } from "./leaks.ts";

/** Returns the processes of a call in which a `sleep` hangs. */
export async function processesOfHanging(
  call: () => Promise<unknown>,
  scope: Scope,
): Promise<Set<string>> {
  const now = () => takeSnapshot(scope).things.process;
  const before = now();
  call().catch(() => {}); // the kill ends it
  let made = new Set<string>();
  await until("the call hangs", () => {
    made = now().difference(before);
    return [...made].some((one) => / sleep /.test(one));
  });
  return made;
}
