// Tests the choice of proxies from environment variables.
import { describe, expect, test } from "bun:test";
import { proxyFor, type Environment } from "../../../src/registry/proxy.ts";

const proxy = "http://proxy.example:3128";
const urlOf = (target: string, env: Environment) =>
  proxyFor(new URL(target), env)?.url.replace(/\/$/, "");

describe("proxyFor", () => {
  test.each<[string, Environment, string | undefined]>([
    ["https://r.example/v2", { HTTPS_PROXY: proxy }, proxy],
    ["https://r.example/v2", { https_proxy: proxy }, proxy],
    ["https://r.example/v2", { HTTPS_PROXY: proxy, https_proxy: "http://other:1" }, proxy],
    ["https://r.example/v2", { HTTPS_PROXY: "", https_proxy: proxy }, proxy],
    ["https://r.example/v2", { HTTP_PROXY: proxy }, undefined],
    ["http://r.example/v2", { HTTP_PROXY: proxy }, proxy],
    ["http://r.example/v2", { http_proxy: "proxy.example:3128" }, proxy],
    ["http://r.example/v2", { HTTP_PROXY: "https://p.example" }, "https://p.example"],
    ["http://localhost:5000/v2", { HTTP_PROXY: proxy }, undefined],
    ["http://127.1.2.3/v2", { HTTP_PROXY: proxy }, undefined],
    ["http://[::1]:5000/v2", { HTTP_PROXY: proxy }, undefined],
    ["http://r.example/v2", {}, undefined],
  ])("of %s with %j is %p", (target, env, result) => {
    expect(urlOf(target, env)).toBe(result as string);
  });

  test.each<[string, string, boolean]>([
    ["*", "https://r.example", false],
    ["r.example", "https://r.example", false],
    ["R.Example", "https://r.example", false],
    ["r.example", "https://a.r.example", false],
    ["r.example", "https://other.example", true],
    ["r.example", "https://ar.example", true],
    [".r.example", "https://a.r.example", false],
    [".r.example", "https://r.example", true],
    ["*.r.example", "https://a.r.example", false],
    ["*.r.example", "https://r.example", true],
    ["r.example:443", "https://r.example", false],
    ["r.example:5000", "https://r.example", true],
    [" a, r.example ,b", "https://r.example", false],
    ["10.0.0.0/8", "https://10.1.2.3:5000", false],
    ["10.0.0.0/8", "https://11.1.2.3", true],
    ["10.1.2.3", "https://10.1.2.3:5000", false],
    ["10.1.2.3:5000", "https://10.1.2.3:5000", false],
    ["10.1.2.3:5001", "https://10.1.2.3:5000", true],
    ["fd00::/8", "https://[fd12::1]", false],
    ["fd12:0::1", "https://[fd12::1]:5000", false],
    ["[fd12::1]:5000", "https://[fd12::1]:5000", false],
    ["[fd12::1]:5001", "https://[fd12::1]:5000", true],
    [":443,,:", "https://r.example", true],
    ["", "https://r.example", true],
  ])("with NO_PROXY=%j of %s is used: %p", (noProxy, target, isUsed) => {
    for (const name of ["NO_PROXY", "no_proxy"]) {
      expect(urlOf(target, { HTTPS_PROXY: proxy, [name]: noProxy }) !== undefined).toBe(isUsed);
    }
  });

  test("is described with its variable, without its password", () => {
    const env = { https_proxy: "http://me:s3cret@proxy.example:3128" };
    const found = proxyFor(new URL("https://r.example"), env)!;
    expect(found.url).toContain("me:s3cret@");
    expect(found.about).toBe("http://proxy.example:3128 (https_proxy)");
  });

  test.each(["socks5://p:1", "http://", "http://u:s3cret@h:x", "::"])(
    "refuses %j by the variable's name",
    (value) => {
      const ask = () => urlOf("http://r.example", { HTTP_PROXY: value });
      expect(ask).toThrow(expect.objectContaining({ code: "FAILED_PRECONDITION" }));
      expect(ask).toThrow("HTTP_PROXY");
      expect(ask).not.toThrow("s3cret");
    },
  );
});
