// Tests the explanations of failures of fetch.
import { describe, expect, test } from "bun:test";
import { failureOf } from "../../../src/registry/connection.ts";

const failed = (code: string, message = "") =>
  failureOf(Object.assign(new Error(message), { code }));

describe("failureOf", () => {
  test.each([
    ["CERT_HAS_EXPIRED", "renew it"],
    ["CERT_NOT_YET_VALID", "clock"],
    ["DEPTH_ZERO_SELF_SIGNED_CERT", "CA to hosts.toml"],
    ["UNABLE_TO_VERIFY_LEAF_SIGNATURE", "CA to hosts.toml"],
    ["ERR_TLS_CERT_ALTNAME_INVALID", "pull by that name"],
  ])("takes %s for an untrusted certificate: no retry, and its own cure", (code, cure) => {
    const { reason, ...rest } = failed(code);
    expect(rest).toEqual({ isFinal: true, isUntrusted: true });
    expect(reason).toContain(code);
    expect(reason).toContain(cure);
  });

  test.each(["ECONNREFUSED", "ECONNRESET", "ENOTFOUND", "ETIMEDOUT"])(
    "lets %s be retried",
    (code) => {
      expect(failed(code)).toMatchObject({ isFinal: false, isUntrusted: false });
      expect(failed(code).reason).toEndWith(`(${code})`);
    },
  );

  test("does not retry a proxy that requires a password", () => {
    expect(failed("ERR_PROXY_TUNNEL", "status 407 from proxy").isFinal).toBe(true);
    expect(failed("ERR_PROXY_TUNNEL", "status 502 from proxy").isFinal).toBe(false);
    expect(failed("EOTHER", "status 407 from proxy").isFinal).toBe(false);
  });

  test("shows an unknown error without its URLs", () => {
    const { reason } = failed("EODD", 'Failed to open "https://r.test/b?signature=s3cret" now');
    expect(reason).toBe("Failed to open … now (EODD)");
    expect(failureOf(new Error("odd. For more information, pass verbose: true")).reason).toBe(
      "odd.",
    );
  });
});
