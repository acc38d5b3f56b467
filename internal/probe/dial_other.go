//go:build !linux

package probe

import "syscall"

func shareSourcePorts(_, _ string, _ syscall.RawConn) error { return nil }
