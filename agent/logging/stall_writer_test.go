package logging

import (
	"bufio"
	"errors"
	"io"
	"testing"
	"time"
)

func TestStallWriterDropsLines(t *testing.T) {
	read, write := io.Pipe()
	p := newStallWriter(write)
	p.timeout = 10 * time.Millisecond
	for _, line := range []string{"first\n", "lost\n", "lost too\n"} {
		if _, err := p.Write([]byte(line)); !errors.Is(err, errStalled) {
			t.Fatalf("%q: %v", line, err)
		}
	}
	lines := bufio.NewScanner(read)
	if !lines.Scan() || lines.Text() != "first" {
		t.Fatalf("read %q", lines.Text())
	}
	go func() {
		for {
			if _, err := p.Write([]byte("again\n")); err == nil {
				_ = write.Close()
				return
			}
		}
	}()
	if !lines.Scan() || lines.Text() != "again" {
		t.Errorf("read %q after the reader has resumed", lines.Text())
	}
	_, _ = io.Copy(io.Discard, read)
}
