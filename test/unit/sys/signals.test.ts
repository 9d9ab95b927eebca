// Tests the numbers of signals by the names of CRI and of images.
import { expect, test } from "bun:test";
import { runtime } from "../../../src/proto/messages.js";
import { signalNumber } from "../../../src/sys/signals.ts";
import { codeAndMessage } from "../../spec/inputs.ts";

test("signalNumber() knows every signal that CRI names", () => {
  const names = Object.keys(runtime.v1.Signal).map((name) => name.replace("SIGNAL_", ""));
  const numbers = names.filter((name) => name !== "RUNTIME_DEFAULT").map(signalNumber);
  expect(new Set(numbers).size).toBe(62); // of 65, three are second names
  expect(Math.max(...numbers)).toBe(64);
});

test("signalNumber() reads what images write", () => {
  const texts = ["SIGTERM", "term", "15", "SIGRTMIN+3", "SIGRTMAX-14", "SIGCLD"];
  expect(texts.map(signalNumber)).toEqual([15, 15, 15, 37, 50, 17]);
  for (const text of ["", "0", "65", "SIGNOPE", "15; reboot", "SIGRTMIN+99"]) {
    expect(codeAndMessage(() => signalNumber(text))).toContain("INVALID_ARGUMENT");
  }
});
