// Tests how the cluster's steps read a kubelet's metrics, and what they say about pods that changed.
import { expect, test } from "bun:test";
import { parseSeries } from "../cadvisor_check.ts";
import { checkUnchanged, type Cluster, podsIn } from "../cluster_pods.ts";
import { quantileMs } from "../cluster_steps_crowd.ts";

const histogram = (counts: Record<string, number>) =>
  parseSeries(
    Object.entries(counts)
      .map(([le, count]) => `relist_bucket{le="${le}"} ${count}`)
      .join("\n"),
  );

test("quantileMs() returns the bound of the bucket that holds the quantile", () => {
  const series = histogram({ "0.005": 98, "0.01": 99, "0.5": 100, "+Inf": 100 });
  expect(quantileMs(series, "relist", 0.99)).toBe(10);
  expect(quantileMs(series, "relist", 0.995)).toBe(500);
});

test("quantileMs() returns Infinity for a quantile above the last bound, NaN without a histogram", () => {
  expect(quantileMs(histogram({ "0.5": 1, "+Inf": 9 }), "relist", 0.99)).toBe(Infinity);
  expect(quantileMs(histogram({ "0.5": 1 }), "other", 0.99)).toBeNaN();
});

type Pod = { id: string; restarts: number; ready: string; end?: object };

function clusterWith({ id, restarts, ready, end }: Pod): Cluster {
  const status = { restartCount: restarts, containerID: id, lastState: { terminated: end } };
  const pod = {
    metadata: { name: "web-1", uid: "u" },
    spec: {},
    status: {
      phase: "Running",
      conditions: [{ type: "Ready", status: ready }],
      containerStatuses: [status],
    },
  };
  const kubectl = async (words: string[]) => `events of ${words.join(" ")}`;
  return { control: { list: async () => [pod], kubectl } } as unknown as Cluster;
}

test.each([
  { name: "one that kept it", after: { id: "a", restarts: 0, ready: "True" }, said: undefined },
  {
    name: "one that is not ready",
    after: { id: "a", restarts: 0, ready: "False" },
    said: "web-1 is not ready: \nevents of -n crowd events --for pod/web-1",
  },
  {
    name: "one that was restarted",
    after: { id: "b", restarts: 1, ready: "False", end: { exitCode: 137 } },
    said: 'a container of web-1 was restarted: {"exitCode":137}\nevents of -n crowd events --for pod/web-1',
  },
])(
  "checkUnchanged() tells exit and events of a pod that changed: $name",
  async ({ after, said }) => {
    const before = await podsIn(clusterWith({ id: "a", restarts: 0, ready: "True" }), "crowd");
    const failure = await checkUnchanged(clusterWith(after), "crowd", before).catch(
      (error: Error) => error.message,
    );
    expect(failure as string | undefined).toBe(said);
  },
);
