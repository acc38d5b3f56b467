//go:build !linux

package mesh

import "runtime"

func joinProcess(ExecTarget, string) error { return &UnsupportedError{OS: runtime.GOOS} }

func replaceProcess(string, []string, []string) error { return &UnsupportedError{OS: runtime.GOOS} }
