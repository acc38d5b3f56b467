package envoy

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"
)

const (
	maxLine   = 8 << 10 // maximum number of bytes of a line that are stored
	tailLines = 50      // number of last lines that Exit contains
	// outputGrace is how long the agent waits for the end of the output after Envoy has ended. Normally the output ends
	// immediately. It stays open only if a process outside Envoy's process group has the pipe open.
	outputGrace = 2 * time.Second
)

// outputReader reads a process's output line by line and stores the last lines.
type outputReader struct {
	file *os.File
	done chan struct{}

	mu   sync.Mutex // guards tail
	tail ring
}

func readOutput(file *os.File, rewrite func(string) (string, bool), each func(string)) *outputReader {
	o := &outputReader{file: file, done: make(chan struct{})}
	go func() {
		defer close(o.done)
		forEachLine(file, func(line string) {
			if rewrite != nil {
				var ok bool
				if line, ok = rewrite(line); !ok {
					return
				}
			}
			o.mu.Lock()
			o.tail.add(line)
			o.mu.Unlock()
			if each != nil {
				each(line)
			}
		})
	}()
	return o
}

// finish waits for the end of the output and returns the last lines. The wait is limited, because the agent must report
// Envoy's exit even if the agent's own output is a pipe that no process reads.
func (o *outputReader) finish() []string {
	_ = o.file.SetReadDeadline(time.Now().Add(outputGrace))
	select {
	case <-o.done:
	case <-time.After(2 * outputGrace):
	}
	_ = o.file.Close()
	return o.lastLines()
}

// lastLines returns the last lines of the output that has been read so far.
func (o *outputReader) lastLines() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.tail.lines()
}

// forEachLine calls f with each line, without its newline and up to maxLine bytes. It replaces the rest of a longer
// line by its length.
func forEachLine(r io.Reader, f func(string)) {
	in := bufio.NewReaderSize(r, maxLine)
	for {
		line, err := in.ReadSlice('\n')
		text := string(line)
		for errors.Is(err, bufio.ErrBufferFull) {
			var dropped int
			dropped, err = discardRest(in)
			if dropped > 0 {
				text += fmt.Sprintf(" … (%d bytes more)", dropped)
			}
		}
		if text != "" {
			f(strings.TrimRight(text, "\r\n"))
		}
		if err != nil {
			return
		}
	}
}

// discardRest discards the rest of a line and returns its length without the newline.
func discardRest(in *bufio.Reader) (n int, err error) {
	for {
		part, err := in.ReadSlice('\n')
		n += len(part)
		if !errors.Is(err, bufio.ErrBufferFull) {
			if err == nil {
				n--
			}
			return n, err
		}
	}
}

// ring stores the last tailLines lines.
type ring struct {
	buffer []string
	next   int
}

func (r *ring) add(line string) {
	if len(r.buffer) < tailLines {
		r.buffer = append(r.buffer, line)
		return
	}
	r.buffer[r.next] = line
	r.next = (r.next + 1) % tailLines
}

func (r *ring) lines() []string {
	return append(append([]string(nil), r.buffer[r.next:]...), r.buffer[:r.next]...)
}
