//go:build !linux

package command

import (
	"fmt"
	"runtime"
)

// checkSupported returns an error: pilotfish runs proxies only on Linux.
func checkSupported() error {
	return fmt.Errorf("pilotfish supports only Linux, and this machine runs %s", runtime.GOOS)
}

func protectMemory() error { return nil }
