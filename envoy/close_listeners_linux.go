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

// closeListeners shuts down the listening sockets of process pid. It skips sockets that another process also has open:
// after a hot restart, the next Envoy uses them. Sockets that only pid and the calling process have open are shut down.
func closeListeners(pid int) error {
	thread, sockets, err := findThreadWithFiles(pid)
	if err == nil {
		err = filterListening(thread, sockets)
	}
	if err == nil && len(sockets) > 0 {
		err = excludeShared(pid, sockets)
	}
	if err != nil {
		return fmt.Errorf("closing the listeners of process %d: %w", pid, err)
	}
	var errs []error
	for _, descriptor := range sockets {
		errs = append(errs, shutdownSocket(pid, thread, descriptor))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("closing the listeners of process %d: %w", pid, err)
	}
	return nil
}

// excludeShared removes the sockets that a process other than pid and the calling process also has open. It fails if it
// cannot list the sockets of another child of the calling process, because that child may be the next Envoy. An
// unprivileged process cannot list the sockets of a program that has file capabilities.
func excludeShared(pid int, sockets map[string]int) error {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		n, _ := strconv.Atoi(filepath.Base(dir))
		if n == pid || n == os.Getpid() {
			continue
		}
		descriptors, err := socketDescriptors(n)
		if errors.Is(err, fs.ErrPermission) && isChild(dir) {
			return fmt.Errorf("process %d may share the listeners: %w", n, err)
		}
		maps.DeleteFunc(sockets, func(inode string, _ int) bool { _, shared := descriptors[inode]; return shared })
	}
	return nil
}

// isChild reports whether the process with this /proc directory is a running child of the calling process.
func isChild(dir string) bool {
	fields := readStat(dir)
	return len(fields) > 1 && fields[0] != "Z" && fields[1] == strconv.Itoa(os.Getpid())
}

// findThreadWithFiles returns a thread of the process that still has file descriptors, and its sockets by inode. The
// main thread is not sufficient: if the process hangs while it exits, that thread may already have ended.
func findThreadWithFiles(pid int) (thread int, sockets map[string]int, err error) {
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

// filterListening removes all sockets that are not listening sockets.
func filterListening(pid int, sockets map[string]int) error {
	if len(sockets) == 0 {
		return nil
	}
	listen := make(map[string]bool)
	err := forEachSocket(pid, func(s socket) { listen[s.inode] = s.state == stateListening })
	maps.DeleteFunc(sockets, func(inode string, _ int) bool { return !listen[inode] })
	return err
}

// shutdownSocket shuts down the socket with this file descriptor in a thread of process pid.
func shutdownSocket(pid, thread, descriptor int) error {
	flags := 0
	if thread != pid {
		flags = unix.PIDFD_THREAD
	}
	fd, err := duplicateThreadFD(thread, flags, descriptor)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	return unix.Shutdown(fd, unix.SHUT_RDWR)
}
