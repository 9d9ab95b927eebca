// Tests the attempts of one request with a fake clock.
import { describe, expect, test } from "bun:test";
import type { ErrorCode } from "../../../src/base/errors.ts";
import { Failover, Reconnection } from "../../../src/registry/failover.ts";
import { TransferError } from "../../../src/registry/http_request.ts";
import { pullSession, upstream } from "../fakes.ts";

const mirror = "https://mirror.test/v2";
const second = "https://second.test/v2";
const origin = "https://registry.test/v2";
const plainOrigin = "http://registry.test/v2";

type Outcome = TransferError | "ok";
const missing = new TransferError("NOT_FOUND", "missing");
const down = new TransferError("UNAVAILABLE", "down", { mayRetry: true });
const busy = new TransferError("RESOURCE_EXHAUSTED", "busy", {
  mayRetry: true,
  retryAfterMs: 9000,
});
const silent = new TransferError("DEADLINE_EXCEEDED", "silent");
const untrusted = new TransferError("UNAVAILABLE", "untrusted", { isUntrusted: true });

/** Returns the attempts as "DELAY URL" until one succeeds, then the final error's code if none does. */
function play(
  urls: Record<string, Outcome>,
  o: { spoke?: string; failing?: string; canResolve?: (url: string) => boolean } = {},
) {
  const session = pullSession(
    Object.keys(urls).map((url) => ({
      ...upstream(url, { isOrigin: url.includes("registry.test") }),
      isRegistry: url === o.spoke,
      isFailing: url === o.failing,
      canResolve: o.canResolve?.(url) ?? true,
    })),
  );
  let now = 0;
  const failover = new Failover(session, { needs: "canResolve", nowMs: () => now });
  const attempts: string[] = [];
  for (let next = failover.next(); next !== undefined; next = failover.next()) {
    now += next.delayMs;
    attempts.push(`${next.delayMs} ${next.upstream.url}`);
    const outcome = urls[next.upstream.url]!;
    if (outcome === "ok") {
      failover.succeeded(next.upstream);
      return { attempts, session, code: "OK" };
    }
    failover.failed(next.upstream, outcome);
  }
  const { code, message }: { code: ErrorCode; message: string } = failover.error("it");
  return { attempts, session, code, message };
}

describe("Failover", () => {
  test("uses the upstreams in their order and stops at the first success", () => {
    const { attempts, session } = play({ [mirror]: missing, [second]: "ok", [origin]: "ok" });
    expect(attempts).toEqual([`0 ${mirror}`, `0 ${second}`]);
    expect(session.servedBy).toBe("second.test");
    expect(session.upstreams.map(({ isRegistry }) => isRegistry)).toEqual([false, true, false]);
  });

  test("tries upstreams last that failed before, and forgives them once they succeed", () => {
    const { attempts, session } = play({ [mirror]: "ok", [origin]: missing }, { failing: mirror });
    expect(attempts).toEqual([`0 ${origin}`]);
    expect(session.upstreams[0]!.isFailing).toBe(true);
    const alone = play({ [mirror]: "ok" }, { failing: mirror });
    expect(alone.session.upstreams[0]!.isFailing).toBe(false);
  });

  test("retries a temporary failure four times in all, doubling the delay", () => {
    const { attempts, code, session } = play({ [origin]: down });
    expect(attempts).toEqual([`0 ${origin}`, `500 ${origin}`, `1000 ${origin}`, `2000 ${origin}`]);
    expect(code).toBe("UNAVAILABLE");
    expect(session.upstreams[0]!.isFailing).toBe(true);
  });

  test("waits at least as long as Retry-After", () => {
    expect(play({ [origin]: busy }).attempts[1]).toBe(`9000 ${origin}`);
  });

  test("uses other upstreams while one backs off", () => {
    const { attempts } = play({ [mirror]: down, [second]: down, [origin]: missing });
    expect(attempts).toEqual([`0 ${mirror}`, `0 ${second}`, `0 ${origin}`]);
    const rounds = play({ [mirror]: down, [second]: down });
    expect(rounds.attempts.slice(0, 4)).toEqual([
      `0 ${mirror}`,
      `0 ${second}`,
      `500 ${mirror}`,
      `0 ${second}`,
    ]);
    expect(rounds.attempts).toHaveLength(8);
  });

  test("does not retry silence, but tries that upstream last afterwards", () => {
    const { attempts, session, code } = play({ [origin]: silent });
    expect(attempts).toHaveLength(1);
    expect(code).toBe("DEADLINE_EXCEEDED");
    expect(session.upstreams[0]!.isFailing).toBe(true);
    expect(play({ [origin]: missing }).session.upstreams[0]!.isFailing).toBe(false);
  });

  test("falls back to plain HTTP only where no registry and no untrusted certificate was found", () => {
    const both = (first: TransferError) => ({ [origin]: first, [plainOrigin]: "ok" as const });
    expect(play(both(missing)).attempts).toEqual([`0 ${origin}`, `0 ${plainOrigin}`]);
    expect(play(both(missing), { spoke: origin }).attempts).toEqual([`0 ${origin}`]);
    expect(play(both(untrusted)).attempts).toEqual([`0 ${origin}`]);
    expect(
      play({ [origin]: "ok", [plainOrigin]: "ok" }, { spoke: origin, failing: origin }).attempts,
    ).toEqual([`0 ${origin}`]);
    const other = play({ [mirror]: missing, [origin]: "ok" }, { spoke: mirror });
    expect(other.code).toBe("OK");
  });

  test("lets the registry's final response overrule mirrors before it, not those after it", () => {
    const { attempts, message } = play({ [mirror]: down, [origin]: missing, [second]: missing });
    expect(attempts).toEqual([`0 ${mirror}`, `0 ${origin}`, `0 ${second}`]);
    expect(message).toBe("cannot get it: missing");
    const temporary = play({ [mirror]: missing, [origin]: down });
    expect(temporary.message).toBe("cannot get it: missing; down");
    expect(play({ [origin]: missing, [plainOrigin]: silent }).message).toBe(
      "cannot get it: missing; silent",
    );
  });

  test("fails with the code of the registry, preferring a final failure and one that spoke", () => {
    expect(play({ [mirror]: missing, [origin]: silent }).code).toBe("DEADLINE_EXCEEDED");
    expect(play({ [origin]: silent, [second]: missing }).code).toBe("DEADLINE_EXCEEDED");
    expect(play({ [plainOrigin]: missing, [origin]: down }, { spoke: origin }).code).toBe(
      "UNAVAILABLE",
    );
    expect(play({ [origin]: missing, [second]: down }, { spoke: origin }).code).toBe("NOT_FOUND");
    const plain = play({ [plainOrigin]: untrusted, [origin]: down });
    expect(plain.message).toContain("untrusted");
  });

  test("skips upstreams without the capability, and says if there is none with it", () => {
    const can = { canResolve: (url: string) => url !== mirror };
    expect(play({ [mirror]: "ok", [origin]: "ok" }, can).attempts).toEqual([`0 ${origin}`]);
    expect(play({ [mirror]: "ok" }, can).code).toBe("FAILED_PRECONDITION");
  });
});

describe("Reconnection", () => {
  const broken = new TransferError("UNAVAILABLE", "broken");
  const alone = { hasOther: false };

  test("goes on at once where another upstream has not been asked, and counts from there", () => {
    for (const error of [broken, silent]) {
      const reconnection = new Reconnection(500);
      expect(reconnection.afterBreak(0, error, { hasOther: true })).toBe(0);
      expect(reconnection.afterBreak(0, broken, alone)).toBe(1000);
    }
  });

  test("doubles the delay after each connection without a byte, and allows three in a row", () => {
    const reconnection = new Reconnection(500);
    expect([0, 0, 0].map((bytes) => reconnection.afterBreak(bytes, broken, alone))).toEqual([
      1000, 2000, 4000,
    ]);
    expect(() => reconnection.afterBreak(0, broken, alone)).toThrow(broken);
  });

  test("starts over after a connection that made progress", () => {
    const reconnection = new Reconnection(500);
    const delays = [0, 0, 1, 0, 0, 0].map((bytes) => reconnection.afterBreak(bytes, broken, alone));
    expect(delays).toEqual([1000, 2000, 500, 1000, 2000, 4000]);
  });

  test("does not reconnect to a server that fell silent without sending anything", () => {
    const reconnection = new Reconnection(500);
    expect(reconnection.afterBreak(1, silent, alone)).toBe(500);
    expect(() => reconnection.afterBreak(0, silent, alone)).toThrow(silent);
  });

  test("allows 100 reconnections", () => {
    const reconnection = new Reconnection(500);
    for (let i = 0; i < 100; i++) expect(reconnection.afterBreak(1, broken, alone)).toBe(500);
    expect(() => reconnection.afterBreak(1, broken, alone)).toThrow(broken);
  });
});
