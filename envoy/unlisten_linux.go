package envoy

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// unlisten shuts the listening sockets of a process down that no other process but this one has too: sockets that went from
// one Envoy to the next are the next one's.
func unlisten(pid int) error {
	thread, own := threadWithFiles(pid)
	if err := keepListening(thread, own); err != nil || len(own) == 0 {
		return err
	}
	others, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return err
	}
	for _, other := range others {
		if n, _ := strconv.Atoi(filepath.Base(other)); n != pid && n != os.Getpid() {
			theirs, _ := socketDescriptors(n) // of none that this process may not look at
			maps.DeleteFunc(own, func(inode string, _ int) bool { _, shared := theirs[inode]; return shared })
		}
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

// threadWithFiles gives a thread of the process that still has its descriptors, and those that are sockets: in an end that
// hangs, the first thread may have ended before.
func threadWithFiles(pid int) (thread int, sockets map[string]int) {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
	for _, dir := range threads {
		thread, _ = strconv.Atoi(filepath.Base(dir))
		if sockets, _ = socketDescriptors(thread); len(sockets) > 0 {
			return thread, sockets
		}
	}
	return pid, nil
}

// keepListening takes out of a process's sockets those that do not listen.
func keepListening(pid int, sockets map[string]int) error {
	if len(sockets) == 0 {
		return nil
	}
	listen := make(map[string]bool)
	err := eachSocket(pid, func(_, _, state, inode string) { listen[inode] = state == stateListening })
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
