package filewatch

import (
	"bufio"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// mountTable is what the kernel says is mounted in this process's mount namespace. A poll of it tells of each change.
const mountTable = "/proc/self/mountinfo"

// Mounts tells of file systems that are put over paths, or over directories above or below them, and taken away: a watch of
// a directory is told of the first by nobody.
type Mounts struct {
	// Changes holds one while there is a change that was not read yet; what there is now is to be looked at anew. It is not
	// closed.
	Changes <-chan struct{}

	table, ended *os.File
	running      sync.WaitGroup
}

// WatchMounts begins to watch. Close ends it.
func WatchMounts(paths ...string) (*Mounts, error) {
	// Not by os.Open: a file is told of each change once, and Go's own poller would be who hears of it.
	fd, err := unix.Open(mountTable, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: mountTable, Err: err}
	}
	table := os.NewFile(uintptr(fd), mountTable)
	asked, ended, err := os.Pipe()
	if err != nil {
		_ = table.Close()
		return nil, err
	}
	changes := make(chan struct{}, 1)
	m := &Mounts{Changes: changes, table: table, ended: ended}
	// Where links led at first is looked at too: what is mounted above may hide where they lead.
	paths = slices.Concat(paths, resolvedAll(paths))
	before := mountsOn(table, paths)
	m.running.Go(func() {
		defer asked.Close()
		for m.await(asked) {
			now := mountsOn(table, paths)
			if slices.Equal(now, before) {
				continue
			}
			before = now
			select {
			case changes <- struct{}{}:
			default:
			}
		}
	})
	return m, nil
}

// await waits for a change of the table; false is that nobody wants to know of it any more.
func (m *Mounts) await(asked *os.File) bool {
	for {
		wanted := []unix.PollFd{{Fd: int32(m.table.Fd()), Events: unix.POLLPRI}, {Fd: int32(asked.Fd()), Events: unix.POLLIN}}
		if _, err := unix.Poll(wanted, -1); err == unix.EINTR {
			continue
		} else if err != nil {
			return false
		}
		return wanted[1].Revents == 0
	}
}

// Close ends the watch, and returns when it has ended.
func (m *Mounts) Close() {
	_ = m.ended.Close() // which is what tells the watch
	m.running.Wait()
	_ = m.table.Close()
}

// mountsOn are what is mounted on the paths, above them or below them, in the order of mounting.
func mountsOn(table *os.File, paths []string) (on []string) {
	if _, err := table.Seek(0, 0); err != nil {
		return nil
	}
	real := resolvedAll(paths)
	lines := bufio.NewScanner(table)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 5 {
			continue
		}
		point := unescaped(fields[4])
		if slices.ContainsFunc(real, func(path string) bool { return below(path, point) || below(point, path) }) {
			on = append(on, fields[0]+" "+fields[2]+" "+point)
		}
	}
	return on
}

func resolvedAll(paths []string) (real []string) {
	for _, path := range paths {
		if path, err := filepath.Abs(path); err == nil {
			real = append(real, resolved(path))
		}
	}
	return real
}

// resolved is where a path leads, as far as there is something.
func resolved(path string) string {
	if to, err := filepath.EvalSymlinks(path); err == nil || path == filepath.Dir(path) {
		return filepath.Clean(to)
	}
	return filepath.Join(resolved(filepath.Dir(path)), filepath.Base(path))
}

func below(dir, path string) bool {
	return dir == path || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}

// unescaped is a path as the kernel has it, which writes some bytes of it as \ and three octal digits.
func unescaped(text string) string {
	if !strings.Contains(text, `\`) {
		return text
	}
	var out strings.Builder
	for i := 0; i < len(text); i++ {
		if text[i] == '\\' && i+3 < len(text) {
			if b, err := strconv.ParseUint(text[i+1:i+4], 8, 8); err == nil {
				out.WriteByte(byte(b))
				i += 3
				continue
			}
		}
		out.WriteByte(text[i])
	}
	return out.String()
}
