//go:build !linux

package agent

import "os/exec"

func setPdeathsig(*exec.Cmd, bool) (release func()) { return func() {} }

func killApplicationGroup(int) {}

func isInForeground() bool { return false }
