// Starts metrics-server for the test cluster, which asks the kubelets, and reads its figures by `kubectl top`.
import type { ControlPlane } from "./cluster_control.ts";
import { eventually, expect } from "./cluster_pods.ts";

const namespace = "kube-system";
const name = "metrics-server";
const apiName = "v1beta1.metrics.k8s.io";
const port = 4443;

/** Registers the metrics API at the apiserver: its server runs on the control plane's machine, not in a pod. */
async function register(control: ControlPlane): Promise<void> {
  const metadata = { name, namespace };
  const labels = { "kubernetes.io/service-name": name };
  await control.apply(
    {
      apiVersion: "v1",
      kind: "Service",
      metadata,
      spec: { ports: [{ name: "https", port: 443, targetPort: port }] },
    },
    {
      apiVersion: "discovery.k8s.io/v1",
      kind: "EndpointSlice",
      metadata: { ...metadata, labels },
      addressType: "IPv4",
      ports: [{ name: "https", port }],
      endpoints: [{ addresses: [control.machine.address], conditions: { ready: true } }],
    },
    {
      apiVersion: "apiregistration.k8s.io/v1",
      kind: "APIService",
      metadata: { name: apiName },
      spec: {
        service: metadata,
        group: "metrics.k8s.io",
        version: "v1beta1",
        insecureSkipTLSVerify: true, // its certificate is made at its start
        groupPriorityMinimum: 100,
        versionPriority: 100,
      },
    },
  );
}

/**
 * Runs metrics-server for as long as the returned object lives. An API without its server would keep the apiserver
 * from deleting namespaces.
 */
export async function startMetricsServer(control: ControlPlane): Promise<AsyncDisposable> {
  const config = control.kubeconfig("admin");
  const server = await control.startProgram(name, [
    `--kubeconfig=${config}`,
    `--authentication-kubeconfig=${config}`,
    `--authorization-kubeconfig=${config}`,
    `--kubelet-certificate-authority=${control.authorityFile}`,
    "--kubelet-preferred-address-types=InternalIP",
    "--metric-resolution=15s",
    `--secure-port=${port}`,
    `--cert-dir=${control.pki}/${name}`,
  ]);
  await register(control);
  return {
    [Symbol.asyncDispose]: async () => {
      await control.kubectl(["delete", "apiservice", apiName]);
      await server.stop("SIGKILL");
    },
  };
}

export type Usage = { millicores: number; mebibytes: number };

/** Returns what `kubectl top` prints for each name, once it prints something for all of them. */
export async function top(
  control: ControlPlane,
  words: string[],
  names: string[],
): Promise<Map<string, Usage>> {
  const shown = new Map<string, Usage>();
  await eventually(`kubectl top ${words.join(" ")} shows ${names.join()}`, async () => {
    const text = await control.kubectl(["top", ...words, "--no-headers"]);
    for (const [, name, cores, memory] of text.matchAll(/^(\S+)\s+(\d+)m\s.*?\s(\d+)Mi\b/gm)) {
      shown.set(name!, { millicores: Number(cores), mebibytes: Number(memory) });
    }
    return names.every((one) => shown.has(one));
  });
  for (const one of names)
    expect(shown.get(one)!.mebibytes > 0, `kubectl top: ${one} uses no memory`);
  return shown;
}
