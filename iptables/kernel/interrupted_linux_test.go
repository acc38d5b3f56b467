package kernel

import (
	"encoding/binary"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pilotfish-mesh/pilotfish/internal/testns"
)

// The kernel refuses a list while another goes on (EBUSY).
func TestAfterAListThatChangedComesTheNext(t *testing.T) {
	ns := testns.New(t)
	var s, other *Socket
	err := ns.Within(func() (err error) {
		if s, err = Dial(unix.NETLINK_ROUTE, time.Now().Add(time.Minute)); err == nil {
			other, err = Dial(unix.NETLINK_ROUTE, time.Now().Add(time.Minute))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = s.Close(), other.Close() })
	for i := range 2000 { // some 100 KiB of them
		address(t, other, unix.RTM_NEWADDR, uint16(i))
	}
	var stop atomic.Bool
	changes := make(chan struct{})
	go func() {
		defer close(changes)
		for i := 0; !stop.Load(); i++ {
			address(t, other, []uint16{unix.RTM_NEWADDR, unix.RTM_DELADDR}[i%2], 60000)
		}
	}()
	defer func() { stop.Store(true); <-changes }()
	interrupted := 0
	for end := time.Now().Add(20 * time.Second); interrupted < 5 && time.Now().Before(end); {
		_, err := s.Ask(unix.RTM_GETADDR, unix.NLM_F_DUMP, make([]byte, unix.SizeofIfAddrmsg))
		if errors.Is(err, ErrInterrupted) {
			interrupted++
		} else if err != nil {
			t.Fatalf("after %d lists that changed: %v", interrupted, err)
		}
	}
	if interrupted == 0 {
		t.Skip("no list was changed while it was read")
	}
}

// address adds or takes away one of lo's.
func address(t *testing.T, s *Socket, kind, number uint16) {
	t.Helper()
	body := []byte{unix.AF_INET, 32, 0, 0, 0, 0, 0, 0}
	binary.NativeEndian.PutUint32(body[4:], 1)
	body = binary.NativeEndian.AppendUint16(binary.NativeEndian.AppendUint16(body, 8), unix.IFA_LOCAL)
	body = append(body, 10, 77, byte(number>>8), byte(number))
	flags := uint16(0)
	if kind == unix.RTM_NEWADDR {
		flags = unix.NLM_F_CREATE
	}
	if _, err := s.Ask(kind, flags, body); err != nil {
		t.Errorf("address %d: %v", number, err)
	}
}
