package agent

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"testing"
	"time"
)

// A hung log collector must not prevent a drain.
func TestAgentWithStalledLogReaderStopsInTime(t *testing.T) {
	t.Parallel()
	s := newSetup(t, "127.141.22.1")
	defer s.cp.start(t)()
	r := s.prepare(t)
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	r.cmd.Stdout, r.cmd.Stderr = write, write
	r.run(t)
	r.waitReady()
	fillPipe(t, write)
	r.signal(syscall.SIGTERM)
	select {
	case <-r.done:
	case <-time.After(testTimeout):
		t.Fatal("the agent did not exit")
	}
}

// fillPipe writes to a pipe until its buffer is full.
func fillPipe(t *testing.T, pipe *os.File) {
	t.Helper()
	defer pipe.Close()
	fd, err := syscall.Open(fmt.Sprintf("/proc/self/fd/%d", pipe.Fd()), syscall.O_WRONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(fd)
	for _, size := range []int{4096, 1} {
		for err = nil; err == nil; {
			_, err = syscall.Write(fd, make([]byte, size))
		}
	}
	if !errors.Is(err, syscall.EAGAIN) {
		t.Fatal(err)
	}
}
