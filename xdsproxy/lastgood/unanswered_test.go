package lastgood

import (
	"fmt"
	"testing"
)

// writeUnanswered writes a response with one resource, without Envoy's answer.
func writeUnanswered(s *Store, stage uint64, name string) {
	s.WriteResource(stage, clusters, name, "1", []byte("not accepted"))
	s.WriteResponse(stage, clusters, "1", false)
}

// Stage numbers start at 1 in each process, and a process appends to the log of the one before.
func TestUnacceptedStageIsNotReusedAfterRestart(t *testing.T) {
	for _, rejected := range []bool{true, false} {
		t.Run(fmt.Sprintf("rejected %v", rejected), func(t *testing.T) {
			dir := t.TempDir()
			s := openStore(t, dir, 0)
			s.Begin(testIdentity, true)
			writeAccepted(s, 1, clusters, "a", "1", "A")
			writeUnanswered(s, 2, "bad")
			if rejected {
				s.Reject(2)
			}
			writeAccepted(s, 3, clusters, "b", "1", "B")
			s.Checkpoint()
			s.Close()

			s = openStore(t, dir, 0)
			s.Begin(testIdentity, false)
			writeAccepted(s, 1, clusters, "c", "1", "C")
			writeAccepted(s, 2, clusters, "d", "1", "D")
			s.Checkpoint()
			expectStored(t, s, "a=1:A b=1:B c=1:C d=1:D")
		})
	}
}

// A control plane may send a rejected resource repeatedly.
func TestLogWithManyRejectionsIsReadable(t *testing.T) {
	s := openStore(t, t.TempDir(), 0)
	s.Begin(testIdentity, true)
	writeAccepted(s, 1, clusters, "a", "1", "A")
	for n := range uint64(2 * maxStages) {
		writeUnanswered(s, 2+n, "bad")
		s.Reject(2 + n)
		s.Checkpoint()
	}
	expectStored(t, s, "a=1:A")
}
