package logging

import (
	"bytes"
	"errors"
	"io"
	"sync"
	"time"
)

// stallTimeout is the duration of a write after which the reader of the output counts as stalled.
const stallTimeout = time.Second

// errStalled reports that the reader of the output is stalled.
var errStalled = errors.New("the output is blocked, because its reader does not read")

// stallWriter writes to a target that may block, such as a pipe whose reader hangs. While the target blocks, it drops
// messages. An agent therefore continues to run, and can drain and stop, even if its log reader hangs.
type stallWriter struct {
	to      io.Writer
	timeout time.Duration

	mu      sync.Mutex
	pending chan error // result of a write that has not returned; nil if there is none
}

func newStallWriter(to io.Writer) *stallWriter {
	return &stallWriter{to: to, timeout: stallTimeout}
}

// Write writes b, or returns errStalled. If an earlier write has not returned, Write drops b. If the write of b itself
// times out, the target can still receive b later.
func (p *stallWriter) Write(b []byte) (int, error) {
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
	timer := time.NewTimer(p.timeout)
	defer timer.Stop()
	select {
	case err := <-done:
		return len(b), err
	case <-timer.C:
		p.pending = done
		return 0, errStalled
	}
}
