package exposition

import (
	"bytes"
	"errors"
	"fmt"
	"io"
)

const (
	firstBuffer = 128 << 10
	// longestLine is the longest line that is read; longer ones are left out.
	longestLine = 256 << 10
)

// lines gives the lines of a stream. It holds the longest of them in memory, and no more.
type lines struct {
	from     io.Reader
	most     int64 // bytes; 0 is no bound
	buf      []byte
	at, end  int
	err      error
	skipping bool // the rest of a line that is too long

	// bytes is how much was read, tooLong how many lines were left out.
	bytes   int64
	tooLong int
}

func newLines(r io.Reader, most int64) *lines { return &lines{from: r, most: most} }

// next gives the next whole line without its end; it is good until the next call. A last line that does not end is
// dropped: nobody can tell whether it is whole.
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
		if l.end-l.at >= longestLine {
			if !l.skipping {
				l.skipping = true
				l.tooLong++
			}
			l.at, l.end = 0, 0
		}
		l.more()
		searched = l.at
	}
}

// ahead is what was read and not given yet; skip leaves out whole lines of it.
func (l *lines) ahead() []byte { return l.buf[l.at:l.end] }
func (l *lines) skip(n int)    { l.at += n }

// more reads on. What is left of the last line is moved to the beginning.
func (l *lines) more() {
	if l.most > 0 && l.bytes > l.most {
		l.err = &TooMuchError{fmt.Sprintf("%d bytes", l.most)}
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
	if l.most > 0 {
		room = room[:min(int64(len(room)), l.most-l.bytes+1)]
	}
	for range 100 { // a reader may give nothing a few times, but not for ever
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

// failure is why the stream ended, when it is not its own end.
func (l *lines) failure() error {
	if errors.Is(l.err, io.EOF) {
		return nil
	}
	return l.err
}
