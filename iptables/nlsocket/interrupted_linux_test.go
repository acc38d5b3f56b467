package nlsocket

import (
	"encoding/binary"
	"errors"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pilotfish-mesh/pilotfish/internal/testns"
)

// The kernel refuses a dump while another is incomplete (EBUSY).
func TestListAfterAnInterruptedListSucceeds(t *testing.T) {
	ns := testns.New(t)
	var s, other *Socket
	err := ns.Run(func() (err error) {
		if s, err = Dial(unix.NETLINK_ROUTE, time.Time{}); err == nil {
			other, err = Dial(unix.NETLINK_ROUTE, time.Time{})
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = s.Close(), other.Close() })
	const many = 2000 // about 100 KiB, which the kernel prepares in parts of 32 KiB, the first on the request
	for i := range many {
		address(t, other, unix.RTM_NEWADDR, uint16(i))
	}
	of := make([]byte, unix.SizeofIfAddrmsg)
	sequence := s.NextSequence()
	if err := s.Send(Append(nil, unix.RTM_GETADDR, unix.NLM_F_DUMP, sequence, of)); err != nil {
		t.Fatal(err)
	}
	address(t, other, unix.RTM_NEWADDR, many)
	if _, err := s.readReplies(sequence); !errors.Is(err, ErrInterrupted) {
		t.Fatalf("a list that changed while it was read: error %v", err)
	}
	all, err := s.Request(unix.RTM_GETADDR, unix.NLM_F_DUMP, of)
	if err != nil || len(all) < many {
		t.Errorf("the next list: %d addresses, %v", len(all), err)
	}
}

// address adds or removes an address of lo.
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
	if _, err := s.Request(kind, flags, body); err != nil {
		t.Errorf("address %d: %v", number, err)
	}
}
