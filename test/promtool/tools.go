//go:build tools

// Package promtool names the checker of rules that the tests build from the Go module proxy.
package promtool

import _ "github.com/prometheus/prometheus/cmd/promtool"
