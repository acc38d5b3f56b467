//go:build !linux

package mesh

import "syscall"

func childAttributes() *syscall.SysProcAttr { return nil }

func awaitExit(int) {}

func killGroup(int, syscall.Signal) {}

func guardAttributes() *syscall.SysProcAttr { return nil }
