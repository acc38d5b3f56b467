//go:build !linux

package agent

import (
	"fmt"
	"runtime"
)

// supported refuses to run a proxy where Envoy cannot be owned as it must be.
func supported() error {
	return fmt.Errorf("pilotfish runs on Linux; this is %s", runtime.GOOS)
}
