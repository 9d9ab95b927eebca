// Starts a control plane for the test cluster (etcd, apiserver, controller-manager, scheduler) on a machine of its
// own, with the certificates of all components, and calls it: by its API and by kubectl.
import { spawn } from "node:child_process";
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { Authority, type Signed } from "./certificates.ts";
import { type Component, type Machine, must } from "./cluster_machine.ts";

export const services = "10.96.0.0/16";
const servicesFirst = "10.96.0.1";
/** The apiserver's own name towards servers of further APIs. */
const aggregator = "aggregator";

export type Done = { code: number | null; stdout: string; stderr: string };
export type Resource = {
  metadata: { name: string; uid?: string; labels?: Record<string, string> };
  spec?: Record<string, unknown>;
  status?: Record<string, unknown>;
};

export class ControlPlane {
  readonly machine: Machine;
  readonly #bin: string;
  readonly #authority: Authority;
  readonly pki: string;
  readonly #admin: Signed;
  #components: Component[] = [];

  constructor(machine: Machine, bin: string) {
    this.machine = machine;
    this.#bin = bin;
    this.pki = join(machine.dir, "pki");
    mkdirSync(this.pki, { recursive: true });
    this.#authority = new Authority(this.pki);
    const own = ["kubernetes", "kubernetes.default", "kubernetes.default.svc"].map(
      (name) => `DNS:${name}`,
    );
    const names = [`IP:${machine.address}`, `IP:${servicesFirst}`, "IP:127.0.0.1", ...own];
    this.#authority.sign("apiserver", names.join());
    must("openssl", ["genrsa", "-out", this.#file("sa.key"), "2048"]);
    must("openssl", ["rsa", "-in", this.#file("sa.key"), "-pubout", "-out", this.#file("sa.pub")]);
    this.#admin = this.identity("admin", "/O=system:masters/CN=admin");
    this.identity(aggregator, `/CN=${aggregator}`);
    for (const name of ["kube-controller-manager", "kube-scheduler", "kube-proxy"])
      this.identity(name, `/CN=system:${name}`);
  }

  #file(name: string): string {
    return join(this.pki, name);
  }

  /** Writes the certificate and kubeconfig (NAME.conf) of a user. names: those of a server. */
  identity(name: string, subject: string, names = `DNS:${name}`): Signed {
    const signed = this.#authority.sign(name, names, subject);
    const data = (text: string) => Buffer.from(text).toString("base64");
    const cluster = {
      server: `https://${this.machine.address}:6443`,
      "certificate-authority-data": data(this.#authority.pem),
    };
    const user = {
      "client-certificate-data": data(signed.cert),
      "client-key-data": data(signed.key),
    };
    const config = {
      apiVersion: "v1",
      kind: "Config",
      clusters: [{ name: "lab", cluster }],
      users: [{ name, user }],
      contexts: [{ name: "lab", context: { cluster: "lab", user: name } }],
      "current-context": "lab",
    };
    writeFileSync(this.#file(`${name}.conf`), JSON.stringify(config), { mode: 0o600 });
    return signed;
  }

  async start(): Promise<void> {
    const { machine } = this;
    const data = join(machine.dir, "etcd");
    const [ca, key, sa] = ["ca.pem", "ca.key", "sa.key"].map((name) => this.#file(name));
    const programs: Record<string, string[]> = {
      etcd: [`--data-dir=${data}`, "--unsafe-no-fsync", "--log-level=warn"],
      "kube-apiserver": [
        "--etcd-servers=http://127.0.0.1:2379",
        `--advertise-address=${machine.address}`,
        `--service-cluster-ip-range=${services}`,
        `--client-ca-file=${ca}`,
        `--tls-cert-file=${this.#file("apiserver.pem")}`,
        `--tls-private-key-file=${this.#file("apiserver.key")}`,
        `--kubelet-certificate-authority=${ca}`,
        `--kubelet-client-certificate=${this.#file("admin.pem")}`,
        `--kubelet-client-key=${this.#file("admin.key")}`,
        "--service-account-issuer=https://kubernetes.default.svc",
        `--service-account-key-file=${this.#file("sa.pub")}`,
        `--service-account-signing-key-file=${sa}`,
        "--kubelet-preferred-address-types=InternalIP",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged",
        `--requestheader-client-ca-file=${ca}`,
        `--requestheader-allowed-names=${aggregator}`,
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        `--proxy-client-cert-file=${this.#file(`${aggregator}.pem`)}`,
        `--proxy-client-key-file=${this.#file(`${aggregator}.key`)}`,
        "--enable-aggregator-routing", // no kube-proxy runs on this machine
      ],
      "kube-controller-manager": [
        `--kubeconfig=${this.kubeconfig("kube-controller-manager")}`,
        `--root-ca-file=${ca}`,
        `--service-account-private-key-file=${sa}`,
        `--cluster-signing-cert-file=${ca}`,
        `--cluster-signing-key-file=${key}`,
        "--use-service-account-credentials",
        "--leader-elect=false",
      ],
      "kube-scheduler": [
        `--kubeconfig=${this.kubeconfig("kube-scheduler")}`,
        "--leader-elect=false",
      ],
    };
    for (const [name, flags] of Object.entries(programs)) {
      this.#components.push(await this.startProgram(name, flags));
      if (name === "kube-apiserver") await this.#ready();
    }
  }

  /** Starts one more program on the control plane's machine. */
  startProgram(name: string, flags: string[]): Promise<Component> {
    return this.machine.start(name, [join(this.#bin, name), ...flags]);
  }

  async #ready(): Promise<void> {
    const end = Date.now() + 180_000;
    for (;;) {
      const dead = this.#components.find(({ runs }) => !runs);
      if (dead !== undefined)
        throw new Error(`${dead.name} ended: ${this.machine.log(dead.name).slice(-2000)}`);
      const answer = await this.fetch("/readyz").catch((error: unknown) => error);
      if (answer instanceof Response && answer.ok) return;
      if (Date.now() > end) throw new Error("the apiserver is not ready", { cause: answer });
      await sleep(500);
    }
  }

  /** Ends all of its programs by SIGKILL; their data stays. */
  async stop(): Promise<void> {
    await Promise.all(this.#components.map((one) => one.stop("SIGKILL")));
    this.#components = [];
  }

  fetch(path: string): Promise<Response> {
    const { cert, key } = this.#admin;
    const tls = { ca: this.#authority.pem, cert, key };
    const signal = AbortSignal.timeout(60_000);
    return fetch(`https://${this.machine.address}:6443${path}`, { tls, signal });
  }

  /** @throws Error with the API's message. */
  async text(path: string): Promise<string> {
    const answer = await this.fetch(path);
    const text = await answer.text();
    if (!answer.ok) throw new Error(`GET ${path}: ${answer.status} ${text.slice(0, 500)}`);
    return text;
  }

  async get<T = Resource>(path: string): Promise<T> {
    return JSON.parse(await this.text(path)) as T;
  }

  async list<T extends Resource = Resource>(path: string): Promise<T[]> {
    return (await this.get<{ items: T[] }>(path)).items;
  }

  get kubectlPath(): string {
    return join(this.#bin, "kubectl");
  }

  /** The flags of kubectl that name the cluster. */
  get flags(): string[] {
    return [`--kubeconfig=${this.kubeconfig("admin")}`];
  }

  /** The configuration of a client with the given identity. */
  kubeconfig(name: string): string {
    return this.#file(`${name}.conf`);
  }

  /** Runs kubectl to its end, or kills it after `withinMs`. */
  async tryKubectl(words: string[], input = "", withinMs = 120_000): Promise<Done> {
    const options = { timeout: withinMs, killSignal: "SIGKILL", cwd: this.machine.dir } as const;
    const child = spawn(this.kubectlPath, [...this.flags, ...words], options);
    const output = { stdout: "", stderr: "" };
    child.stdout.on("data", (chunk: Buffer) => (output.stdout += chunk.toString()));
    child.stderr.on("data", (chunk: Buffer) => (output.stderr += chunk.toString()));
    child.stdin.end(input);
    const code = await new Promise<number | null>((resolve) => child.once("close", resolve));
    return { code, ...output };
  }

  /** Returns kubectl's output. @throws Error when it fails. */
  async kubectl(words: string[], input = "", withinMs?: number): Promise<string> {
    const { code, stdout, stderr } = await this.tryKubectl(words, input, withinMs);
    if (code === 0) return stdout;
    throw new Error(`kubectl ${words.join(" ")} ended with ${code}: ${stdout}${stderr}`);
  }

  async apply(...objects: object[]): Promise<void> {
    const list = { apiVersion: "v1", kind: "List", items: objects };
    await this.kubectl(["apply", "-f", "-"], JSON.stringify(list));
  }

  /** The data of the certificate authority, for the configuration of kubelets. */
  get authorityFile(): string {
    return this.#file("ca.pem");
  }

  get log(): string {
    return readFileSync(join(this.machine.dir, "logs/kube-apiserver"), "utf8");
  }
}
