package mesh

import (
	"bytes"
	"io"
	"strings"
	"sync"
)

const (
	// maxLine bounds a line of output; what is longer is cut, so that a program that prints no newline costs no memory.
	maxLine = 16 << 10
	// tailLines is how many of the last lines are kept to be shown when a process ends.
	tailLines = 10
)

// lines cuts a process's output into lines, hands them on, and remembers the last ones.
type lines struct {
	emit func(string)

	mu      sync.Mutex
	partial []byte
	cut     bool
	tail    []string
}

// Write takes output as it comes.
func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := len(p)
	for {
		i := bytes.IndexByte(p, '\n')
		if i < 0 {
			l.keep(p)
			return n, nil
		}
		l.keep(p[:i])
		l.finish()
		p = p[i+1:]
	}
}

func (l *lines) keep(p []byte) {
	if room := maxLine - len(l.partial); len(p) > room {
		p, l.cut = p[:room], true
	}
	l.partial = append(l.partial, p...)
}

func (l *lines) finish() {
	line := strings.ToValidUTF8(string(bytes.TrimRight(l.partial, "\r")), "\uFFFD")
	if l.cut {
		line += " … (cut)"
	}
	l.partial, l.cut = l.partial[:0], false
	if len(l.tail) == tailLines {
		l.tail = append(l.tail[:0], l.tail[1:]...)
	}
	l.tail = append(l.tail, line)
	if l.emit != nil {
		l.emit(line)
	}
}

// flush hands on a last line that has no end.
func (l *lines) flush() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.partial) > 0 {
		l.finish()
	}
}

func (l *lines) last() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]string(nil), l.tail...)
}

// copyLines reads until the end of the output or an error.
func copyLines(r io.Reader, l *lines) {
	_, _ = io.CopyBuffer(struct{ io.Writer }{l}, r, make([]byte, 16<<10))
	l.flush()
}
