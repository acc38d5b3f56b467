package cni

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pilotfish-mesh/pilotfish/cni/agentapi"
)

// journal is the plugin's logger. It writes JSON lines to standard error and the log file, and buffers them for the
// node agent.
type journal struct {
	*slog.Logger
	mu    sync.Mutex
	out   io.Writer
	file  string
	limit int64
	lines [][]byte
}

// maxLines limits the lines buffered for the node agent; a command logs about five.
const maxLines = 200

func newJournal(out io.Writer, c *Config) *journal {
	level, err := logLevel(c.LogLevel)
	if err != nil {
		level = slog.LevelInfo // Config.validate reports an invalid level
	}
	j := &journal{out: out, limit: c.LogFileBytes}
	if filepath.IsAbs(c.LogFile) { // the plugin does not know in which working directory the runtime starts it
		j.file = c.LogFile
	}
	j.Logger = slog.New(slog.NewJSONHandler(j, &slog.HandlerOptions{Level: level}))
	return j
}

// Write writes one line.
func (j *journal) Write(line []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	_, _ = j.out.Write(line)
	if j.file != "" {
		if err := appendLimited(j.file, line, j.limit); err != nil {
			_, _ = io.WriteString(j.out, "pilotfish-cni: cannot write the file of the setting log_file: "+err.Error()+"\n")
			j.file = "" // log the error only once
		}
	}
	if len(j.lines) < maxLines {
		j.lines = append(j.lines, bytes.Clone(line))
	}
	return len(line), nil
}

// entries returns the buffered lines in the node agent's format.
func (j *journal) entries() (entries []agentapi.LogEntry) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, line := range j.lines {
		e := agentapi.LogEntry{}
		if json.Unmarshal(line, &e.Attributes) != nil {
			continue
		}
		take := func(key string, to any) {
			_ = json.Unmarshal(e.Attributes[key], to)
			delete(e.Attributes, key)
		}
		take(slog.TimeKey, &e.Time)
		take(slog.LevelKey, &e.Level)
		take(slog.MessageKey, &e.Message)
		entries = append(entries, e)
	}
	return entries
}

// appendLimited appends a line to a file that many processes write. If the file would exceed limit, it is first renamed
// to its name with the suffix ".1".
func appendLimited(path string, line []byte, limit int64) error {
	f, info, err := openLog(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if info.Size() > 0 && info.Size()+int64(len(line)) > limit {
		return appendRotated(path, line, limit)
	}
	_, err = f.Write(line)
	return err
}

// openLog opens the log file. The file must be a regular file without other hard links. If it were a named pipe without
// a reader, the open would block the start of every pod. If it had other hard links, the plugin could append to an
// unrelated file.
func openLog(path string) (*os.File, os.FileInfo, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, nil, err
	}
	info, err := f.Stat()
	if err == nil {
		if s, ok := info.Sys().(*syscall.Stat_t); !info.Mode().IsRegular() || ok && s.Nlink > 1 {
			err = fmt.Errorf("%s is not a regular file, or has several hard links: remove it", path)
		}
	}
	if err != nil {
		_ = f.Close()
		return nil, nil, err
	}
	return f, info, nil
}

// appendRotated renames the file and appends the line to a new one. It locks a file next to it and checks the size again
// under the lock, because another process may already have renamed the file.
func appendRotated(path string, line []byte, limit int64) error {
	lock, err := os.OpenFile(path+".lock", os.O_WRONLY|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = lock.Close() }()
	if err := flock(lock); err != nil {
		return err
	}
	if info, err := os.Lstat(path); err == nil && info.Size()+int64(len(line)) > limit {
		if err := os.Rename(path, path+".1"); err != nil {
			return err
		}
	}
	f, _, err := openLog(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	_, err = f.Write(line)
	return err
}

// lockTimeout limits the wait for the lock while another process rotates the file.
const lockTimeout = 2 * time.Second

func flock(f *os.File) error {
	deadline := time.Now().Add(lockTimeout)
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err != unix.EWOULDBLOCK || time.Now().After(deadline) {
			return err
		}
		time.Sleep(time.Millisecond)
	}
}
