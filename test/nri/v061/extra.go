package main

import "github.com/containerd/nri/pkg/stub"

// NRI 0.6.1 has no validators, no updates of pods and no failure policies.
func extraOptions(_ *plugin) []stub.Option { return nil }
