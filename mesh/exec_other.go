//go:build !linux

package mesh

import "runtime"

func joinProcess(execTarget, string) error { return &unsupportedError{OS: runtime.GOOS} }

func replaceProcess(string, []string, []string) error { return &unsupportedError{OS: runtime.GOOS} }
