// Tests metrics: responses of the HTTP server, and CRI messages made of measurements.
import { describe, expect, test } from "bun:test";
import { connect } from "node:net";
import { silentLog } from "../../../src/base/log.ts";
import { toBigInt } from "../../../src/base/int64.ts";
import { runtime } from "../../../src/proto/messages.js";
import { metricDescriptors, metricMessages } from "../../../src/stats/metric_messages.ts";
import { metricsResponse, serveMetrics } from "../../../src/stats/metrics_server.ts";

describe("the metrics server", () => {
  test.each([
    ["GET /metrics HTTP/1.1", "200 OK"],
    ["GET /metrics?x=1 HTTP/1.0", "200 OK"],
    ["GET http://localhost/metrics HTTP/1.1", "200 OK"],
    ["HEAD /metrics HTTP/1.1", "200 OK"],
    ["HEAD /nothing HTTP/1.1", "404 Not Found"],
    ["GET /readyz HTTP/1.1", "503 Service Unavailable"],
    ["GET /toString HTTP/1.1", "404 Not Found"],
    ["GET /metric HTTP/1.1", "404 Not Found"],
    ["POST / HTTP/1.1", "404 Not Found"],
    ["POST /metrics HTTP/1.1", "405 Method Not Allowed"],
    ["GET /metrics HTTP/2", "400 Bad Request"],
    ["nonsense", "400 Bad Request"],
  ])("responds to %j with %s", async (line, status) => {
    const pages = {
      "/metrics": () => ({ status: "200 OK", body: "text" }),
      "/readyz": () => Promise.resolve({ status: "503 Service Unavailable", body: "why" }),
    };
    const response = await metricsResponse(line, pages);
    expect(response.status).toBe(status);
    expect(response.body === "text").toBe(status === "200 OK");
    expect(response.isHead === true).toBe(line.startsWith("HEAD"));
  });

  test("answers a client that closes its own direction after the request", async () => {
    const pages = {
      "/metrics": () => Bun.sleep(20).then(() => ({ status: "200 OK", body: "text" })),
    };
    const at = { address: "127.0.0.1", port: 0 };
    await using server = await serveMetrics(at, { pages, log: silentLog() });
    const socket = connect(server.port, at.address);
    socket.end("GET /metrics HTTP/1.1\r\n\r\n");
    const answer = Buffer.concat(await Array.fromAsync(socket as AsyncIterable<Buffer>));
    expect(answer.toString()).toEndWith("\r\n\r\ntext");
    const silent = connect(server.port, at.address);
    const closed = new Promise((resolve) => silent.once("close", resolve).resume());
    silent.end();
    await closed;
  });
});

test("a page that cannot be made is answered with the reason", async () => {
  const pages = { "/metrics": () => Promise.reject(new Error("EMFILE: too many open files")) };
  expect(await metricsResponse("GET /metrics HTTP/1.1", pages)).toMatchObject({
    status: "500 Internal Server Error",
    body: "EMFILE: too many open files\n",
  });
});

describe("a metric", () => {
  test("has the labels of its descriptor, and the time of its sample", () => {
    const labels = ["pod", "namespace", "app", "c1", "c1", "busybox"];
    const facts = { nowNs: 9n, startedAtNs: 2_000_000_000n, diskName: () => "sda" };
    const metrics = metricMessages(facts, labels);
    const descriptors = new Map(metricDescriptors().map((one) => [one.name, one]));
    expect(metrics.length).toBeGreaterThan(0);
    for (const { name, label_values, timestamp, metric_type } of metrics) {
      expect(label_values?.length).toBe(descriptors.get(name)?.label_keys?.length);
      expect(label_values?.slice(0, 6)).toEqual(labels);
      expect(toBigInt(timestamp)).toBe(9n);
      expect(runtime.v1.MetricType[metric_type ?? 0]).toBeDefined();
    }
  });
});
