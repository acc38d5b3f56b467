package netns

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Surroundings are what a process started from a thread finds beside its network. They are the thread's for good, so that
// the thread is of no use for anything else.
type Surroundings struct {
	// Files take the place of others: path → the file that stands there instead. A path that is not there is left out.
	Files map[string]string
	// Hide are directories that are empty.
	Hide []string
	// Group, when it is not 0, is the only group; capabilities are given up but for binding low ports, and no process
	// that is started gets others back.
	Group int
}

// Enter puts the surroundings in force on the calling thread, to which its goroutine has to be locked.
func (s Surroundings) Enter() error {
	if err := s.mount(); err != nil {
		return err
	}
	if err := inheritNothing(); err != nil || s.Group == 0 {
		return err
	}
	if err := giveUpCapabilities(unix.CAP_NET_BIND_SERVICE); err != nil {
		return err
	}
	return setGroup(s.Group)
}

// mount works in mounts of the thread's own. What others mount later is seen there too, and nothing of this elsewhere.
func (s Surroundings) mount() error {
	if len(s.Files)+len(s.Hide) == 0 {
		return nil
	}
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("making a mount namespace: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("keeping mounts to a namespace: %w", err)
	}
	for path, file := range s.Files {
		if err := replace(path, file); err != nil {
			return err
		}
	}
	for _, dir := range s.Hide {
		if _, err := os.Stat(dir); err != nil {
			continue
		}
		if err := unix.Mount("none", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "size=0,mode=555"); err != nil {
			return fmt.Errorf("hiding %s: %w", dir, err)
		}
	}
	return nil
}

// replace mounts a file over another, or over what a link to one leads to.
func replace(path, file string) error {
	target, err := filepath.EvalSymlinks(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("replacing %s: %w", path, err)
	}
	if err := unix.Mount(file, target, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("putting %s in the place of %s: %w", file, target, err)
	}
	return nil
}

// giveUpCapabilities leaves what the thread starts no way to any capability but one. The thread itself keeps what it has,
// which is lost with the next program.
func giveUpCapabilities(but uintptr) error {
	for c := uintptr(0); c <= unix.CAP_LAST_CAP; c++ {
		if c == but {
			continue
		}
		err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0)
		if err != nil && !errors.Is(err, unix.EINVAL) { // one that this kernel does not know
			return fmt.Errorf("giving up capability %d: %w", c, err)
		}
	}
	return nil
}

// inheritNothing empties the sets that the capabilities of the next program are chosen from beside the bounding one: what
// it may inherit, and with that what is handed on to an ordinary user's (the ambient ones). Root's has its own all the same.
func inheritNothing() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	if err := unix.Capget(&header, &sets[0]); err != nil {
		return fmt.Errorf("reading capabilities: %w", err)
	}
	sets[0].Inheritable, sets[1].Inheritable = 0, 0
	if err := unix.Capset(&header, &sets[0]); err != nil {
		return fmt.Errorf("giving up inheritable capabilities: %w", err)
	}
	return nil
}

// setGroup changes the groups of the calling thread alone, where those of the standard library change every thread's.
func setGroup(group int) error {
	if _, _, e := unix.RawSyscall(unix.SYS_SETGROUPS, 0, 0, 0); e != 0 {
		return fmt.Errorf("giving up groups: %w", e)
	}
	id := uintptr(group)
	if _, _, e := unix.RawSyscall(unix.SYS_SETRESGID, id, id, id); e != 0 {
		return fmt.Errorf("taking group %d: %w", group, e)
	}
	return nil
}
