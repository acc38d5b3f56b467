package mesh

import (
	"bytes"
	"io"
	"strings"
	"sync"
)

const (
	// maxLine is the maximum length of a line of output. Longer lines are truncated, so that the output of a program
	// that prints no newline does not use unlimited memory.
	maxLine = 16 << 10
	// tailLines is the number of last lines that the report of a process's exit contains.
	tailLines = 10
)

// lineWriter splits a process's output into lines, emits them, and stores the last ones.
type lineWriter struct {
	emit func(string)

	mu      sync.Mutex
	partial []byte
	cut     bool
	tail    []string
}

// Write adds output.
func (l *lineWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := len(p)
	for {
		i := bytes.IndexByte(p, '\n')
		if i < 0 {
			l.append(p)
			return n, nil
		}
		l.append(p[:i])
		l.finish()
		p = p[i+1:]
	}
}

func (l *lineWriter) append(p []byte) {
	if room := maxLine - len(l.partial); len(p) > room {
		p, l.cut = p[:room], true
	}
	l.partial = append(l.partial, p...)
}

func (l *lineWriter) finish() {
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

// flush emits the last line if no newline follows it.
func (l *lineWriter) flush() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.partial) > 0 {
		l.finish()
	}
}

func (l *lineWriter) last() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]string(nil), l.tail...)
}

// copyLines copies r to l until the end of r or a read error, and flushes l.
func copyLines(r io.Reader, l *lineWriter) {
	_, _ = io.CopyBuffer(struct{ io.Writer }{l}, r, make([]byte, 16<<10))
	l.flush()
}
