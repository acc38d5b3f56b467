package mesh

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// joinProcess takes the calling thread, which stays its goroutine's, to the network and the files of a process.
func joinProcess(pid int, dir string) error {
	runtime.LockOSThread()
	for _, ns := range []struct {
		name string
		kind int
	}{{"net", unix.CLONE_NEWNET}, {"mnt", unix.CLONE_NEWNS}} {
		if err := joinNamespace(pid, ns.name, ns.kind); err != nil {
			return err
		}
	}
	if err := os.Chdir(dir); err != nil {
		return fmt.Errorf("going back to the working directory: %w", err)
	}
	return nil
}

func joinNamespace(pid int, name string, kind int) error {
	f, err := os.Open(procFile(pid, "ns/"+name))
	if err != nil {
		return err
	}
	defer f.Close()
	if kind == unix.CLONE_NEWNS { // which no thread may that shares its working directory with others
		if err := unix.Unshare(unix.CLONE_FS); err != nil {
			return fmt.Errorf("leaving the other threads: %w", err)
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
