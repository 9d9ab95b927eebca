// Subscribes to pod events in a separate process, so that a test busy with gigabytes does not fall behind:
// the daemon ends a subscription that leaves 2,000 events unread. `event_subscriber.ts SOCKET` writes "ready"
// once it is subscribed, then each event as a line of base64, then the code with which the subscription
// ended.
import process from "node:process";
import { codeOf } from "../src/base/errors.ts";
import { encodeMessage } from "../src/base/protobuf.ts";
import { connect } from "../src/cli/client.ts";
import { runtime } from "../src/proto/messages.js";

using client = connect(process.argv[2]);
const abort = new AbortController();
process.stdin.resume().on("end", () => abort.abort()); // the test ended, or unsubscribed

async function subscribe(): Promise<string> {
  const events = client.GetContainerEvents({}, { signal: abort.signal })[Symbol.asyncIterator]();
  const first = events.next();
  // Calls on one connection reach the daemon in order.
  client.Version({}).then(() => process.stdout.write("ready\n"), abort.abort.bind(abort));
  try {
    for (let next = await first; next.done !== true; next = await events.next()) {
      const bytes = encodeMessage(runtime.v1.ContainerEventResponse, next.value);
      process.stdout.write(`${bytes.toString("base64")}\n`);
    }
    return "OK";
  } catch (error) {
    return codeOf(error);
  }
}

process.stdout.write(`end ${await subscribe()}\n`);
process.stdin.destroy();
