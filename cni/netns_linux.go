package cni

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"
)

// openNetNS opens a sandbox's network namespace. It returns an error for the network namespace of the node or of the
// plugin, because rules there would redirect the traffic of the whole node.
func openNetNS(path string) (*os.File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, types.NewError(types.ErrInvalidNetNS, "cannot open the sandbox's network namespace", err.Error())
	}
	if err := checkNetNS(f); err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

func checkNetNS(f *os.File) error {
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &fs); err != nil || fs.Type != unix.NSFS_MAGIC {
		return types.NewError(types.ErrInvalidNetNS, f.Name()+" is not a network namespace", "set CNI_NETNS to the path of a network namespace")
	}
	var theirs, ours, first unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &theirs); err != nil {
		return types.NewError(types.ErrInvalidNetNS, "cannot inspect the sandbox's network namespace", err.Error())
	}
	// /proc/self refers to the main thread of the process, which may be in another namespace than this thread.
	if err := unix.Stat("/proc/thread-self/ns/net", &ours); err != nil {
		return types.NewError(types.ErrInvalidNetNS, "cannot inspect the plugin's own network namespace", err.Error())
	}
	nodes := unix.Stat("/proc/1/ns/net", &first) == nil && theirs.Dev == first.Dev && theirs.Ino == first.Ino
	if nodes || theirs.Dev == ours.Dev && theirs.Ino == ours.Ino {
		return types.NewError(types.ErrInvalidNetNS, "the sandbox's network namespace is the node's own",
			fmt.Sprintf("no rules are installed in %s, because they would redirect the traffic of the whole node", f.Name()))
	}
	return nil
}

// identify returns the ID of the network namespace in an open file.
func identify(netns *os.File) (nsID, error) {
	var stat unix.Stat_t
	if err := unix.Fstat(int(netns.Fd()), &stat); err != nil {
		return nsID{}, fmt.Errorf("%s: %w", netns.Name(), err)
	}
	return nsID{uint64(stat.Dev), stat.Ino}, nil
}

// hasProcesses reports whether any thread on the node runs in the network namespace. It checks threads instead of
// processes, because a virtual machine may run in a thread whose process is in another namespace.
func hasProcesses(ns nsID) (bool, error) {
	sees, err := seesProcesses()
	if err != nil {
		return false, err
	}
	processes, err := os.ReadDir("/proc")
	if err != nil {
		return false, err
	}
	for _, p := range processes {
		// Skip this process, whose threads may have entered the namespace.
		if pid, err := strconv.Atoi(p.Name()); err != nil || pid == os.Getpid() {
			continue
		}
		tasks := filepath.Join("/proc", p.Name(), "task")
		threads, err := os.ReadDir(tasks)
		if err != nil && !isProcessGone(err) {
			return false, fmt.Errorf("cannot determine whether process %s runs in the namespace: %w", p.Name(), err)
		}
		for _, t := range threads {
			var stat unix.Stat_t
			err := unix.Stat(filepath.Join(tasks, t.Name(), "ns/net"), &stat)
			switch {
			case isProcessGone(err):
			case sees && errors.Is(err, unix.EACCES): // a process of a parent user namespace, in which pods never run
			case err != nil:
				return false, fmt.Errorf("cannot determine whether process %s runs in the namespace: %w", p.Name(), err)
			case nsID{uint64(stat.Dev), stat.Ino} == ns:
				return true, nil
			}
		}
	}
	return false, nil
}

// isProcessGone reports whether err means that a process or thread has ended.
func isProcessGone(err error) bool { return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH) }

// seesProcesses reports whether this process may inspect every other process of its user namespace.
func seesProcesses() (bool, error) {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return false, fmt.Errorf("cannot read the capabilities of this process: %w", err)
	}
	return data[0].Effective&(1<<unix.CAP_SYS_PTRACE) != 0, nil
}
