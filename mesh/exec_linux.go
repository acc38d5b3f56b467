package mesh

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/pilotfish-mesh/pilotfish/mesh/netns"
)

// joinProcess moves the calling thread to the network and mount namespaces of process in.PID, changes to dir, and
// limits the capabilities of the program that will replace this process. The thread stays locked to its goroutine.
func joinProcess(in execTarget, dir string) error {
	runtime.LockOSThread()
	for _, ns := range []struct {
		name string
		kind int
	}{{"net", unix.CLONE_NEWNET}, {"mnt", unix.CLONE_NEWNS}} {
		if err := joinNamespace(in.PID, ns.name, ns.kind); err != nil {
			return err
		}
	}
	if err := os.Chdir(dir); err != nil {
		return fmt.Errorf("changing the working directory: %w", err)
	}
	return netns.LimitCapabilities(in.Capabilities...)
}

func joinNamespace(pid int, name string, kind int) error {
	f, err := os.Open(procFile(pid, "ns/"+name))
	if err != nil {
		return err
	}
	defer f.Close()
	if kind == unix.CLONE_NEWNS { // the kernel does not permit this to a thread that shares its working directory
		if err := unix.Unshare(unix.CLONE_FS); err != nil {
			return fmt.Errorf("unsharing the working directory: %w", err)
		}
	}
	if err := unix.Setns(int(f.Fd()), kind); err != nil {
		return fmt.Errorf("entering the namespace %s of process %d: %w", name, pid, err)
	}
	return nil
}

func replaceProcess(path string, args, env []string) error {
	if err := unix.Exec(path, args, env); err != nil {
		return fmt.Errorf("running %s: %w", path, err)
	}
	return nil
}
