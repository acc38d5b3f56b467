//go:build !linux

package command

import (
	"fmt"
	"runtime"
)

// checkSupported returns an error: pilotfish runs proxies only on Linux.
func checkSupported() error {
	return fmt.Errorf("pilotfish runs on Linux; this is %s", runtime.GOOS)
}

func protectMemory() error { return nil }
