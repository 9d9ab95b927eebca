// Tells questions from calls that change something.

const questions =
  /^(Version|Status|List.*|Stream.*|.*Status|.*Stats|RuntimeConfig|ImageFsInfo|GetContainerEvents)$/;

/** Whether an RPC only asks, as a kubelet does all the time: it is no sign of work, nor is its failure. */
export function isQuestion(rpc: string): boolean {
  return questions.test(rpc);
}
