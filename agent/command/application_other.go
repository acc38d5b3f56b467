//go:build !linux

package command

import "os/exec"

func setPdeathsig(*exec.Cmd, bool) (release func()) { return func() {} }

func killApplicationGroup(int) {}

func isInForeground() bool { return false }
