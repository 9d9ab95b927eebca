// Waits in epoll, as a thread of a poller (poller.ts), and reports ready watches; it reads none of them.
import { parentPort, workerData } from "node:worker_threads";
import { Descriptor, type Released } from "./descriptor.ts";
import { Epoll, wakeTag } from "./epoll.ts";

function main({ epoll: released }: { epoll: Released }): void {
  using epoll = new Epoll(Descriptor.adopt(released));
  for (;;) {
    const ready = epoll.wait(-1);
    if (ready.some(({ tag }) => tag === wakeTag)) return;
    if (ready.length > 0) parentPort!.postMessage(ready);
  }
}

main(workerData as { epoll: Released });
