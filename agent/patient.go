package agent

import (
	"bytes"
	"errors"
	"io"
	"sync"
	"time"
)

// stalledAfter is how long a message may take to be written before its reader counts as one that does not read.
const stalledAfter = time.Second

// errStalled says that nobody reads what is written.
var errStalled = errors.New("nobody reads it")

// patientWriter writes to something that may stand still, as a pipe does whose reader hangs. What is written while it
// stands still is lost, so that an agent whose log nobody takes goes on, and drains when it is told to.
type patientWriter struct {
	to    io.Writer
	after time.Duration

	mu      sync.Mutex
	pending chan error // of a write that has not come to its end
}

func newPatientWriter(to io.Writer) *patientWriter {
	return &patientWriter{to: to, after: stalledAfter}
}

// Write writes all of it, or drops it.
func (p *patientWriter) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pending != nil {
		select {
		case <-p.pending:
			p.pending = nil
		default:
			return 0, errStalled
		}
	}
	done, text := make(chan error, 1), bytes.Clone(b)
	go func() { _, err := p.to.Write(text); done <- err }()
	timer := time.NewTimer(p.after)
	defer timer.Stop()
	select {
	case err := <-done:
		return len(b), err
	case <-timer.C:
		p.pending = done
		return 0, errStalled
	}
}
