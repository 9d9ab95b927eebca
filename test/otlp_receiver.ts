// Provides a trace collector in this process: receives OTLP over HTTP in JSON, and keeps the spans.
import { once } from "node:events";
import { createServer, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import type { Span } from "../src/trace/spans.ts";

export type Receiver = AsyncDisposable & {
  url: string;
  spans: Span[];
  requests: { path: string; headers: Record<string, unknown>; resource: Record<string, string> }[];
};

type Body = {
  resourceSpans: {
    resource: { attributes: { key: string; value: { stringValue: string } }[] };
    scopeSpans: { spans: Span[] }[];
  }[];
};

/** answer: what it does with each request in place of 200 and {}. */
export async function startReceiver(
  answer = (response: ServerResponse) => void response.end("{}"),
): Promise<Receiver> {
  const spans: Span[] = [];
  const requests: Receiver["requests"] = [];
  const server = createServer((request, response) => {
    const chunks: Buffer[] = [];
    request.on("data", (chunk: Buffer) => chunks.push(chunk));
    request.on("end", () => {
      const { resourceSpans } = JSON.parse(Buffer.concat(chunks).toString()) as Body;
      for (const { resource, scopeSpans } of resourceSpans) {
        const pairs = resource.attributes.map(({ key, value }) => [key, value.stringValue]);
        const { url: path = "", headers } = request;
        requests.push({ path, headers, resource: Object.fromEntries(pairs) });
        spans.push(...scopeSpans.flatMap((scope) => scope.spans));
      }
      answer(response);
    });
  });
  await once(server.listen(0, "127.0.0.1"), "listening");
  const { port } = server.address() as AddressInfo;
  return {
    url: `http://127.0.0.1:${port}`,
    spans,
    requests,
    async [Symbol.asyncDispose]() {
      server.closeAllConnections();
      await new Promise((resolve) => server.close(resolve));
    },
  };
}
