package nlsocket

import (
	"encoding/binary"
	"errors"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pilotfish-mesh/pilotfish/internal/testns"
)

func dial(t testing.TB, limit time.Time) *Socket {
	t.Helper()
	ns := testns.New(t)
	var s *Socket
	err := ns.Run(func() (err error) {
		s, err = Dial(unix.NETLINK_ROUTE, limit)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func TestRequestReturnsOnlyItsOwnReplies(t *testing.T) {
	s := dial(t, time.Time{})
	// Unread replies: an error, and a complete list.
	if err := s.Send(Append(nil, unix.RTM_GETLINK, unix.NLM_F_ACK, s.NextSequence(), make([]byte, unix.SizeofIfInfomsg))); err != nil {
		t.Fatal(err)
	}
	lo := make([]byte, unix.SizeofIfInfomsg)
	binary.NativeEndian.PutUint32(lo[4:], 1)
	replies, err := s.Request(unix.RTM_GETLINK, 0, lo)
	if err != nil || len(replies) != 1 || replies[0].Kind != unix.RTM_NEWLINK {
		t.Errorf("%v %v", replies, err)
	}
	if err := s.Send(Append(nil, unix.RTM_GETLINK, unix.NLM_F_ACK, s.NextSequence(), lo)); err != nil { // replies: lo, and the end of the list
		t.Fatal(err)
	}
	only, err := s.Get(unix.RTM_GETLINK, lo)
	if err != nil || only.Kind != unix.RTM_NEWLINK || only.Sequence != s.sequence {
		t.Errorf("%v %v", only, err)
	}
	list, err := s.Request(unix.RTM_GETADDR, unix.NLM_F_DUMP, make([]byte, unix.SizeofIfAddrmsg))
	if err != nil || len(list) != 2 { // of lo: 127.0.0.1 and ::1
		t.Errorf("%d addresses, %v", len(list), err)
	}
}

func TestKernelErrorsAreReturned(t *testing.T) {
	s := dial(t, time.Time{})
	none := make([]byte, unix.SizeofIfInfomsg)
	binary.NativeEndian.PutUint32(none[4:], 77)
	if _, err := s.Request(unix.RTM_GETLINK, 0, none); !errors.Is(err, unix.ENODEV) {
		t.Errorf("%v", err)
	}
	if _, err := s.Get(unix.RTM_GETLINK, none); !errors.Is(err, unix.ENODEV) {
		t.Errorf("%v", err)
	}
}

func TestMissingReplyTimesOut(t *testing.T) {
	s := dial(t, time.Now().Add(time.Millisecond))
	if _, err := s.Receive(); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%v", err)
	}
}

// Between requests, programs may run for a long time, each with its own timeout.
func TestEachReplyHasItsOwnTimeout(t *testing.T) {
	s := dial(t, time.Time{})
	s.deadline = time.Now().Add(-time.Minute) // the previous request was a minute ago
	lo := make([]byte, unix.SizeofIfInfomsg)
	binary.NativeEndian.PutUint32(lo[4:], 1)
	if _, err := s.Get(unix.RTM_GETLINK, lo); err != nil {
		t.Error(err)
	}
	s.limit = time.Now().Add(-time.Second)
	if _, err := s.Get(unix.RTM_GETLINK, lo); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("after the deadline of all requests: %v", err)
	}
}

func FuzzSplit(f *testing.F) {
	f.Add(Append(Append(nil, 1, 2, 3, []byte("abc")), 4, 5, 6))
	f.Fuzz(func(t *testing.T, data []byte) {
		size := 0
		for _, r := range split(data) {
			r.Errno()
			size += unix.NLMSG_HDRLEN + len(r.Data)
		}
		if size > len(data) {
			t.Errorf("%d bytes of messages in %d", size, len(data))
		}
	})
}
