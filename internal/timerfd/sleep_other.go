//go:build !linux

package timerfd

import (
	"context"
	"time"
)

// Sleep waits until so much time has passed, or the context ends; it may end early.
func Sleep(ctx context.Context, d time.Duration) { doze(ctx, d) }
