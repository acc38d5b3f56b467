package netns

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// ProcessIsolation describes the files and privileges of a process. Enter applies them permanently to the thread that
// then starts the process, so the thread cannot be used for other purposes.
type ProcessIsolation struct {
	// Files maps the paths of files to the files that replace them. Paths that do not exist are ignored.
	Files map[string]string
	// Hide lists directories that appear empty to the process.
	Hide []string
	// Capabilities limits the capabilities of processes that the thread starts; nil means no limit.
	Capabilities []uintptr
	// Group, if not 0, becomes the only group of the thread.
	Group int
}

// Enter applies the isolation to the calling thread. The calling goroutine must be locked to the thread.
func (s ProcessIsolation) Enter() error {
	if err := s.mountPrivate(); err != nil {
		return err
	}
	limit := clearInheritable
	if s.Capabilities != nil {
		limit = func() error { return LimitCapabilities(s.Capabilities...) }
	}
	if err := limit(); err != nil || s.Group == 0 {
		return err
	}
	return setGroup(s.Group)
}

// mountPrivate creates a private mount namespace for the thread, with slave propagation: later host mounts appear
// inside, and its own mounts do not propagate out.
func (s ProcessIsolation) mountPrivate() error {
	if len(s.Files)+len(s.Hide) == 0 {
		return nil
	}
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("creating a mount namespace: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("setting the propagation of the mounts in a mount namespace to slave: %w", err)
	}
	for path, file := range s.Files {
		if err := bindMount(path, file); err != nil {
			return err
		}
	}
	for _, dir := range s.Hide {
		if _, err := os.Stat(dir); err != nil {
			continue
		}
		if err := unix.Mount("none", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "size=0,mode=555"); err != nil {
			return fmt.Errorf("mounting an empty file system over %s: %w", dir, err)
		}
	}
	return nil
}

// bindMount mounts a file over another one. It follows symbolic links.
func bindMount(path, file string) error {
	target, err := filepath.EvalSymlinks(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("mounting a replacement of %s: %w", path, err)
	}
	if err := unix.Mount(file, target, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mounting %s over %s: %w", file, target, err)
	}
	return nil
}

// LimitCapabilities removes all capabilities except the allowed ones from the bounding set of the calling thread, and
// clears its inheritable and ambient sets. Programs that the thread executes can then have only the allowed ones. The
// thread itself retains its own.
func LimitCapabilities(allowed ...uintptr) error {
	for c := uintptr(0); c <= unix.CAP_LAST_CAP; c++ {
		if slices.Contains(allowed, c) {
			continue
		}
		err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0)
		if err != nil && !errors.Is(err, unix.EINVAL) { // EINVAL means that this kernel does not have the capability
			return fmt.Errorf("dropping capability %d: %w", c, err)
		}
	}
	return clearInheritable()
}

// clearInheritable clears the inheritable set. The kernel then clears the ambient set too, from which programs of
// ordinary users inherit capabilities. Programs of root do not depend on these sets.
func clearInheritable() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	if err := unix.Capget(&header, &sets[0]); err != nil {
		return fmt.Errorf("reading capabilities: %w", err)
	}
	sets[0].Inheritable, sets[1].Inheritable = 0, 0
	if err := unix.Capset(&header, &sets[0]); err != nil {
		return fmt.Errorf("dropping inheritable capabilities: %w", err)
	}
	return nil
}

// setGroup changes the groups of the calling thread only. The functions of package syscall would change the groups of
// all threads.
func setGroup(group int) error {
	if _, _, e := unix.RawSyscall(unix.SYS_SETGROUPS, 0, 0, 0); e != 0 {
		return fmt.Errorf("dropping groups: %w", e)
	}
	id := uintptr(group)
	if _, _, e := unix.RawSyscall(unix.SYS_SETRESGID, id, id, id); e != 0 {
		return fmt.Errorf("setting group %d: %w", group, e)
	}
	return nil
}
