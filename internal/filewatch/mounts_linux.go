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

// mountTable is the kernel's list of mounts in this process's mount namespace. The kernel reports each change to poll.
const mountTable = "/proc/self/mountinfo"

// Mounts reports mounts and unmounts at paths, and at directories above or below them. A watch of a directory is not
// notified when something is mounted over it.
type Mounts struct {
	// Changes receives a value for a change, and holds it until it is read: the reader then looks at the paths again.
	// It is never closed.
	Changes <-chan struct{}

	table, ended *os.File
	running      sync.WaitGroup
}

// WatchMounts starts the watch. Close stops it.
func WatchMounts(paths ...string) (*Mounts, error) {
	// Not os.Open: the kernel reports each change to one poll, and Go's own poller would receive it.
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
	// The original targets of links are watched as well: a mount above a link may hide its target.
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

// await waits for a change of the table. It returns false when the watch is closed.
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

// Close stops the watch and waits until it has stopped.
func (m *Mounts) Close() {
	_ = m.ended.Close() // wakes the watch
	m.running.Wait()
	_ = m.table.Close()
}

// mountsOn returns the mounts at the paths, above them or below them, in the order of mounting.
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
		if slices.ContainsFunc(real, func(path string) bool { return isBelow(path, point) || isBelow(point, path) }) {
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

// resolved returns a path with its links resolved, as far as it exists.
func resolved(path string) string {
	if to, err := filepath.EvalSymlinks(path); err == nil || path == filepath.Dir(path) {
		return filepath.Clean(to)
	}
	return filepath.Join(resolved(filepath.Dir(path)), filepath.Base(path))
}

func isBelow(dir, path string) bool {
	return dir == path || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}

// unescaped decodes a path of mountinfo, in which the kernel writes some bytes as \ and three octal digits.
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
