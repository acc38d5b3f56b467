package backoff

import (
	"context"
	"testing"
	"time"
)

func TestDelaysGrowToMaxAndReset(t *testing.T) {
	b := Backoff{Min: 100 * time.Millisecond, Max: time.Second}
	for round := range 2 {
		for _, want := range []time.Duration{100, 200, 400, 800, 1000, 1000} {
			want *= time.Millisecond
			if got := b.Next(); got > want || got <= want/2 {
				t.Errorf("round %d: delay %s, want at most %s and more than half of it", round, got, want)
			}
		}
		b.Reset()
	}
}

func TestSleepEndsWithItsContext(t *testing.T) {
	if !Sleep(t.Context(), time.Millisecond) {
		t.Error("Sleep reports that the context ended")
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan bool)
	go func() { ended <- Sleep(ctx, time.Hour) }()
	cancel()
	if <-ended {
		t.Error("Sleep reports that an hour has passed")
	}
}
