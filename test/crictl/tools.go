//go:build tools

// Package crictl names the client that the tests build from the Go module proxy.
package crictl

import _ "sigs.k8s.io/cri-tools/cmd/crictl"
