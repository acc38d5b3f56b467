package envoy

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// unlisten shuts the listening sockets of a process down that no other process but this one has too: sockets that went from
// one Envoy to the next are the next one's.
func unlisten(pid int) error {
	thread, own, err := threadWithFiles(pid)
	if err == nil {
		err = keepListening(thread, own)
	}
	if err == nil && len(own) > 0 {
		err = leaveOthers(pid, own)
	}
	if err != nil {
		return fmt.Errorf("closing the listeners of process %d: %w", pid, err)
	}
	var errs []error
	for _, descriptor := range own {
		errs = append(errs, shut(pid, thread, descriptor))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("closing the listeners of process %d: %w", pid, err)
	}
	return nil
}

// leaveOthers takes out of a process's sockets those that another process has too. Other children of this process may have
// got them from it, so that each has to be looked at: one with capabilities by its file does not let an ordinary user do so.
func leaveOthers(pid int, sockets map[string]int) error {
	others, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return err
	}
	for _, dir := range others {
		n, _ := strconv.Atoi(filepath.Base(dir))
		if n == pid || n == os.Getpid() {
			continue
		}
		theirs, err := socketDescriptors(n)
		if errors.Is(err, fs.ErrPermission) && isChild(dir) {
			return fmt.Errorf("they may be those of process %d too: %w", n, err)
		}
		maps.DeleteFunc(sockets, func(inode string, _ int) bool { _, shared := theirs[inode]; return shared })
	}
	return nil
}

// isChild says whether a process is a child of this one that has not ended.
func isChild(dir string) bool {
	fields := statOf(dir)
	return len(fields) > 1 && fields[0] != "Z" && fields[1] == strconv.Itoa(os.Getpid())
}

// threadWithFiles gives a thread of the process that still has its descriptors, and those that are sockets: in an end that
// hangs, the first thread may have ended before.
func threadWithFiles(pid int) (thread int, sockets map[string]int, err error) {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
	for _, dir := range threads {
		thread, _ = strconv.Atoi(filepath.Base(dir))
		if sockets, err = socketDescriptors(thread); len(sockets) > 0 {
			return thread, sockets, nil
		}
	}
	if errors.Is(err, fs.ErrPermission) {
		return pid, nil, err
	}
	return pid, nil, nil
}

// keepListening takes out of a process's sockets those that do not listen.
func keepListening(pid int, sockets map[string]int) error {
	if len(sockets) == 0 {
		return nil
	}
	listen := make(map[string]bool)
	err := eachSocket(pid, func(s socket) { listen[s.inode] = s.state == stateListening })
	maps.DeleteFunc(sockets, func(inode string, _ int) bool { return !listen[inode] })
	return err
}

// shut ends the listening of a socket of a process, one of whose threads is given.
func shut(pid, thread, descriptor int) error {
	flags := 0
	if thread != pid {
		flags = unix.PIDFD_THREAD
	}
	own, err := duplicateOf(thread, flags, descriptor)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(own) }()
	return unix.Shutdown(own, unix.SHUT_RDWR)
}
