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
	longestLine = 8 << 10 // bytes of a line that are kept
	tailLines   = 50      // lines that are kept for Exit
	// outputGrace is how long to wait for the end of the output once Envoy is gone: only a process that left its group
	// could still hold the pipe.
	outputGrace = 2 * time.Second
)

// output reads a process's output line by line and keeps the last lines.
type output struct {
	file *os.File
	done chan struct{}

	mu   sync.Mutex // of tail
	tail ring
}

func readOutput(file *os.File, rewrite func(string) (string, bool), each func(string)) *output {
	o := &output{file: file, done: make(chan struct{})}
	go func() {
		defer close(o.done)
		eachLine(file, func(line string) {
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

// finish waits for the end of the output and gives the last lines. It does not wait for ever for whoever takes the lines:
// how Envoy ended has to be told even when its output goes to a pipe that nobody reads.
func (o *output) finish() []string {
	_ = o.file.SetReadDeadline(time.Now().Add(outputGrace))
	select {
	case <-o.done:
	case <-time.After(2 * outputGrace):
	}
	_ = o.file.Close()
	return o.last()
}

// last gives the last lines that there are by now.
func (o *output) last() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.tail.lines()
}

// eachLine calls f with each line up to longestLine bytes, without its end; the rest of a longer one is counted.
func eachLine(r io.Reader, f func(string)) {
	in := bufio.NewReaderSize(r, longestLine)
	for {
		line, err := in.ReadSlice('\n')
		text := string(line)
		for errors.Is(err, bufio.ErrBufferFull) {
			var dropped int
			dropped, err = dropRest(in)
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

// dropRest reads to the end of a line and says how many bytes that were, without the end.
func dropRest(in *bufio.Reader) (n int, err error) {
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

// ring keeps the last tailLines lines.
type ring struct {
	kept []string
	next int
}

func (r *ring) add(line string) {
	if len(r.kept) < tailLines {
		r.kept = append(r.kept, line)
		return
	}
	r.kept[r.next] = line
	r.next = (r.next + 1) % tailLines
}

func (r *ring) lines() []string {
	return append(append([]string(nil), r.kept[r.next:]...), r.kept[:r.next]...)
}
