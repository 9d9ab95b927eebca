// Names isulad-ts's own annotations of pods.

/** "true": RunPodSandbox fails when a port of the node that the pod requests is taken (isulad-ts run -p). */
export const refuseOccupiedPorts = "isulad-ts.refuse-occupied-ports";
