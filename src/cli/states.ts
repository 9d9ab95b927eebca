// Names the states of pods and containers, as crictl does.
import { runtime } from "../proto/messages.js";

const { ContainerState, PodSandboxState } = runtime.v1;

export const podStates: Record<number, string> = {
  [PodSandboxState.SANDBOX_READY]: "Ready",
  [PodSandboxState.SANDBOX_NOTREADY]: "NotReady",
};

export const containerStates: Record<number, string> = {
  [ContainerState.CONTAINER_CREATED]: "Created",
  [ContainerState.CONTAINER_RUNNING]: "Running",
  [ContainerState.CONTAINER_EXITED]: "Exited",
  [ContainerState.CONTAINER_UNKNOWN]: "Unknown",
};
