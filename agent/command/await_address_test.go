package command

import (
	"errors"
	"log/slog"
	"net/netip"
	"testing"
	"time"

	"github.com/pilotfish-mesh/pilotfish/agent/config"
)

func TestFirstAddressIsAwaited(t *testing.T) {
	none := func() ([]netip.Addr, error) { return nil, nil }
	looks := 0
	later := func() ([]netip.Addr, error) {
		if looks++; looks < 3 {
			return nil, nil
		}
		return []netip.Addr{netip.MustParseAddr("10.1.1.1")}, nil
	}
	if got := awaitAddress(t.Context(), slog.New(slog.DiscardHandler), later, time.Hour); len(got) != 1 {
		t.Errorf("after %d polls: %v", looks, got)
	}
	if got := awaitAddress(t.Context(), slog.New(slog.DiscardHandler), none, time.Millisecond); got != nil {
		t.Errorf("without an address: %v", got)
	}
}

func TestMissingAddressIsNotAUsageError(t *testing.T) {
	for err, want := range map[error]int{config.ErrNoAddress: exitFailed, errors.New("a wrong value"): exitUsage} {
		if got := ExitCode(usageError{err}); got != want {
			t.Errorf("%v: exit code %d, want %d", err, got, want)
		}
	}
}
