// Names shims' executables by their types, and says what to install where one is missing.
import { programFolders } from "./config_host.ts";

/** Returns true for the type of a shim v2 runtime, such as io.containerd.runsc.v1. */
export function isShimType(name: string): boolean {
  return /^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)+$/.test(name);
}

/** Returns the name of a shim's executable, containerd-shim-X-Y for a type that ends in .X.Y. */
export function shimProgram(type: string): string {
  return ["containerd-shim", ...type.split(".").slice(-2)].join("-");
}

/** Returns true for runc's shim, whose containers are processes of this kernel. */
export function isRuncShim(type: string): boolean {
  return /^containerd-shim-runc-v\d+$/.test(shimProgram(type));
}

const products: Record<string, string> = {
  kata: "Kata Containers (github.com/kata-containers/kata-containers/releases)",
  runc: "containerd (Debian's package containerd has it)",
  runsc: "gVisor (gvisor.dev/docs/user_guide/install)",
};

/** Says where a shim was looked for and what has it; path: absolute, or the name of its executable. */
export function missingShim(path: string, type: string): string {
  const [name = ""] = type.split(".").slice(-2);
  const where = path.startsWith("/") ? "" : ` in ${programFolders.join(", ")}`;
  const product = products[name] ?? `the shim ${type}`;
  return `there is no executable ${path}${where}: install ${product}, or give its path in "runtime-path"`;
}
