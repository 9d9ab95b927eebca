// Tests the description of credentials for the terminal.
import { expect, test } from "bun:test";
import { credentialsText } from "../../../src/image/registry_check.ts";

test.each([
  [{ problem: "the helper broke" }, "the helper broke"],
  [{}, "from x"],
  [{ credentials: { username: "me", password: "s3cret" } }, 'user "me", from x'],
  [{ credentials: { identityToken: "s3cret", username: "me" } }, "identity token, from x"],
  [{ credentials: { registryToken: "s3cret" } }, "registry token, from x"],
])("%j is described as %s, without any secret", (auth, text) => {
  expect(credentialsText({ from: "from x", ...auth })).toBe(text);
});
