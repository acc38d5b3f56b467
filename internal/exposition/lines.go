package exposition

import (
	"bytes"
	"errors"
	"fmt"
	"io"
)

const (
	firstBuffer = 128 << 10
	// maxLine is the maximum length of a line in bytes. Longer lines are dropped.
	maxLine = 256 << 10
)

// lines splits a stream into lines. It buffers one line.
type lines struct {
	from     io.Reader
	limit    int64 // maximum number of bytes; 0: no limit
	buf      []byte
	at, end  int
	err      error
	skipping bool // the current line is too long and is skipped

	// bytes is the number of bytes read. tooLong is the number of lines that were dropped because they were too long.
	bytes   int64
	tooLong int
}

func newLines(r io.Reader, limit int64) *lines { return &lines{from: r, limit: limit} }

// next returns the next line without its line end. The line is valid until the next call. A last line without a line
// end is dropped, because it may be incomplete.
func (l *lines) next() ([]byte, bool) {
	searched := l.at
	for {
		if n := bytes.IndexByte(l.buf[searched:l.end], '\n'); n >= 0 {
			line := l.buf[l.at : searched+n]
			l.at = searched + n + 1
			if l.skipping {
				l.skipping, searched = false, l.at
				continue
			}
			return bytes.TrimSuffix(line, []byte("\r")), true
		}
		if l.err != nil {
			return nil, false
		}
		if l.end-l.at >= maxLine {
			if !l.skipping {
				l.skipping = true
				l.tooLong++
			}
			l.at, l.end = 0, 0
		}
		l.fill()
		searched = l.at
	}
}

// buffered returns the bytes that were read but that next has not returned yet. skip drops the first n of them, which
// must be whole lines.
func (l *lines) buffered() []byte { return l.buf[l.at:l.end] }
func (l *lines) skip(n int)       { l.at += n }

// fill moves an incomplete line to the beginning of the buffer, enlarges a full buffer, and reads more bytes. It stores
// an error in l.err, also if the source exceeds the limit.
func (l *lines) fill() {
	if l.limit > 0 && l.bytes > l.limit {
		l.err = &LimitError{fmt.Sprintf("%d bytes", l.limit)}
		return
	}
	if l.buf == nil {
		l.buf = make([]byte, firstBuffer)
	}
	if l.at > 0 {
		copy(l.buf, l.buf[l.at:l.end])
		l.at, l.end = 0, l.end-l.at
	}
	if l.end == len(l.buf) {
		l.buf = append(l.buf, make([]byte, len(l.buf))...)
	}
	room := l.buf[l.end:]
	if l.limit > 0 {
		room = room[:min(int64(len(room)), l.limit-l.bytes+1)]
	}
	for range 100 { // an io.Reader may return 0 bytes without an error, but not endlessly
		n, err := l.from.Read(room)
		l.end += n
		l.bytes += int64(n)
		l.err = err
		if n > 0 || err != nil {
			return
		}
	}
	l.err = io.ErrNoProgress
}

// failure returns the error that ended the stream, or nil if the stream ended normally.
func (l *lines) failure() error {
	if errors.Is(l.err, io.EOF) {
		return nil
	}
	return l.err
}
