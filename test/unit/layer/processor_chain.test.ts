// Tests the chain of stream processors where the thread that reports readiness gets no processor for a while.
import { afterEach, expect, spyOn, test } from "bun:test";
import { setTimeout as sleep } from "node:timers/promises";
import { ProcessorChain } from "../../../src/layer/processor_chain.ts";
import { Poller } from "../../../src/sys/poller.ts";
import { failure } from "../../expect.ts";

const readable = spyOn(Poller.prototype, "readable");
afterEach(() => readable.mockRestore());

test("a program that failed is reported with what it wrote, though readiness is told late", async () => {
  readable.mockImplementation(() => sleep(500));
  const script = "head -c 100000 /dev/zero | tr '\\0' x >&2; echo no key fits >&2; exit 7";
  const step = { name: "fails", path: "sh", args: ["-c", script], env: [], mediaType: "a/b" };
  await using chain = await ProcessorChain.start({ steps: [step], payload: "", timeoutMs: 60_000 });
  const output = chain.through((async function* () {})());
  const { code, message } = await failure(output.next());
  expect(message).toMatch(/^stream processor fails failed \(7\): …x+no key fits$/);
  expect(code).toBe("FAILED_PRECONDITION");
});
