// Tells RPCs that only read state from those that change it.

const readOnly =
  /^(Version|Status|List.*|Stream.*|.*Status|.*Stats|RuntimeConfig|ImageFsInfo|GetContainerEvents|Dump|Profile|containerd\..*|health\..*)$/;

/** Kubelets make such calls all the time: they count neither as work nor as failures worth a warning. */
export function isReadOnlyCall(rpc: string): boolean {
  return readOnly.test(rpc);
}
