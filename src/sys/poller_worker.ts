// The thread that waits in epoll for a poller (poller.ts) and tells it what is ready. It looks at no
// descriptor itself: data stays with the thread that has to do with it.
import { parentPort, workerData } from "node:worker_threads";
import { Epoll } from "./descriptor.ts";

function main({ epollFd, endFd }: { epollFd: number; endFd: number }): void {
  const epoll = new Epoll(epollFd);
  for (;;) {
    const ready = epoll.wait(-1);
    if (ready.some(({ fd }) => fd === endFd)) return;
    if (ready.length > 0) parentPort!.postMessage(ready);
  }
}

main(workerData as { epollFd: number; endFd: number });
