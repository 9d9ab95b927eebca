// Defines static pods that keep a kubelet busy, and the expected outcome of each of their containers.
import type { Expected } from "./kubelet_check.ts";

type Container = {
  script: string;
  must: Expected["must"];
  attempts?: number;
  byOneCall?: true;
  /** Additional fields of the manifest. */
  more?: object;
  init?: true;
};
type Pod = { name: string; restartPolicy?: string; containers: Record<string, Container> };

const forever = "trap exit TERM; while :; do usleep 200000; done";
const exec = (script: string) => ({ exec: { command: ["sh", "-c", script] } });
const often = { periodSeconds: 1, failureThreshold: 2, timeoutSeconds: 5 };
/** Fails until /shared/NAME has that many lines. */
const failUntil = (name: string, attempts: number) =>
  `echo x >> /shared/${name}; [ $(wc -l < /shared/${name}) -ge ${attempts} ]`;

const pods: Pod[] = [
  ...[0, 1, 2].map((index): Pod => ({
    name: `crash-${index}`,
    containers: {
      fails: { script: `usleep ${index * 300_000}; exit ${index + 1}`, must: "restart" },
      ends: { script: "true", must: "restart" },
      stays: { script: forever, must: "steady" },
    },
  })),
  {
    name: "liveness",
    containers: {
      probed: {
        script: `touch /tmp/alive; usleep 3000000; rm /tmp/alive; ${forever}`,
        must: "restart",
        more: { livenessProbe: { ...exec("[ -e /tmp/alive ]"), ...often } },
      },
      healthy: {
        script: `touch /tmp/ready; ${forever}`,
        must: "steady",
        more: {
          startupProbe: { ...exec("[ -e /tmp/ready ]"), periodSeconds: 1, failureThreshold: 60 },
          readinessProbe: { ...exec("true"), periodSeconds: 1, timeoutSeconds: 10 },
          livenessProbe: {
            ...exec("true"),
            periodSeconds: 1,
            timeoutSeconds: 30,
            failureThreshold: 10,
          },
        },
      },
    },
  },
  {
    name: "init",
    containers: {
      first: { script: "true", must: "complete", init: true },
      second: { script: failUntil("init", 3), must: "complete", attempts: 3, init: true },
      main: { script: forever, must: "steady" },
    },
  },
  {
    name: "sidecar",
    containers: {
      beside: {
        script: "usleep 2000000; exit 1",
        must: "restart",
        init: true,
        more: { restartPolicy: "Always" },
      },
      main: { script: forever, must: "steady" },
    },
  },
  {
    name: "hooks",
    containers: {
      stopped: {
        script: forever,
        must: "restart",
        byOneCall: true,
        more: {
          lifecycle: { postStart: exec("touch /tmp/hooked"), preStop: exec("usleep 500000") },
          livenessProbe: { ...exec("[ ! -e /tmp/hooked ]"), ...often },
        },
      },
      refused: {
        script: forever,
        must: "restart",
        byOneCall: true,
        more: { lifecycle: { postStart: exec("exit 1") } },
      },
    },
  },
  {
    name: "job",
    restartPolicy: "OnFailure",
    containers: {
      fails: { script: failUntil("job", 4), must: "complete", attempts: 4 },
      ends: { script: "usleep 1000000", must: "complete" },
    },
  },
];

/** A pod whose manifest is removed later. */
function visitor(index: number): Pod {
  return {
    name: `visitor-${index}`,
    containers: {
      fails: { script: "exit 1", must: "go" },
      stays: { script: forever, must: "go" },
    },
  };
}

export type Manifest = { name: string; json: string; expected: Expected[] };

export function standingPods(image: string): Manifest[] {
  return pods.map((pod) => manifest(pod, image));
}

export function visitingPod(index: number, image: string): Manifest {
  return manifest(visitor(index), image);
}

function manifest({ name, restartPolicy = "Always", containers }: Pod, image: string): Manifest {
  const entries = Object.entries(containers);
  const specs = (init: boolean) =>
    entries
      .filter(([, container]) => (container.init === true) === init)
      .map(([key, { script, more }]) => ({
        name: key,
        image,
        imagePullPolicy: "Never",
        command: ["sh", "-c", script],
        volumeMounts: [{ name: "shared", mountPath: "/shared" }],
        ...more,
      }));
  const spec = {
    restartPolicy,
    terminationGracePeriodSeconds: 2,
    hostNetwork: true,
    volumes: [{ name: "shared", emptyDir: {} }],
    initContainers: specs(true),
    containers: specs(false),
  };
  const metadata = { name, namespace: "default" };
  const expected = entries.map(([key, { must, attempts, byOneCall = false }]) => ({
    pod: `${name}-node1`, // as the kubelet calls a static pod
    name: key,
    must,
    byOneCall,
    ...(attempts === undefined ? {} : { attempts }),
  }));
  return {
    name,
    json: JSON.stringify({ apiVersion: "v1", kind: "Pod", metadata, spec }),
    expected,
  };
}
