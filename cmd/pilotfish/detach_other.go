//go:build !linux

package main

import "syscall"

func detachedAttributes() *syscall.SysProcAttr { return nil }

func silence() {}
