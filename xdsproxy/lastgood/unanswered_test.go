package lastgood

import (
	"fmt"
	"testing"
)

// leave writes one resource that Envoy is sent, and that is not accepted.
func leave(s *Store, stage uint64, name string) {
	s.Resource(stage, clusters, name, "1", []byte("not accepted"))
	s.Response(stage, clusters, "1", false)
}

// Numbers begin at one with each process, and its log goes on where the last one's ended.
func TestWhatWasNotAcceptedDoesNotEnterUnderTheNumberOfALaterProcess(t *testing.T) {
	for _, rejected := range []bool{true, false} {
		t.Run(fmt.Sprintf("rejected %v", rejected), func(t *testing.T) {
			dir := t.TempDir()
			s := open(t, dir, 0)
			s.Begin(me, true)
			accept(s, 1, clusters, "a", "1", "A")
			leave(s, 2, "bad")
			if rejected {
				s.Rejected(2)
			}
			accept(s, 3, clusters, "b", "1", "B")
			s.Mark()
			s.Close()

			s = open(t, dir, 0)
			s.Begin(me, false)
			accept(s, 1, clusters, "c", "1", "C")
			accept(s, 2, clusters, "d", "1", "D")
			s.Mark()
			expectKept(t, s, "a=1:A b=1:B c=1:C d=1:D")
		})
	}
}

// A control plane may send what Envoy rejects again and again.
func TestLogWithManyRejectionsCanBeRead(t *testing.T) {
	s := open(t, t.TempDir(), 0)
	s.Begin(me, true)
	accept(s, 1, clusters, "a", "1", "A")
	for n := range uint64(2 * maxStages) {
		leave(s, 2+n, "bad")
		s.Rejected(2 + n)
		s.Mark()
	}
	expectKept(t, s, "a=1:A")
}
