//go:build !linux

package agent

import "context"

func reapOrphans(context.Context, func(pid int) bool) {}
