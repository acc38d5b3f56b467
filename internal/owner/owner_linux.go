package owner

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// chownChecked checks a file and changes its owner. It opens the path first, so that the file cannot be replaced
// between the check and the change.
func chownChecked(path string, o *Owner) error {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	var s unix.Stat_t
	if err := unix.Fstat(fd, &s); err != nil {
		return err
	}
	kind := s.Mode & unix.S_IFMT
	switch {
	case kind == unix.S_IFLNK:
		return errors.New("the file is a symbolic link: remove it")
	case kind != unix.S_IFDIR && s.Nlink != 1:
		return fmt.Errorf("the file has %d hard links, and may belong to another user: remove it", s.Nlink)
	case s.Uid != uint32(os.Geteuid()) && s.Uid != o.UID:
		return fmt.Errorf("the file belongs to user %d: remove it", s.Uid)
	}
	return unix.Fchownat(fd, "", int(o.UID), int(o.GID), unix.AT_EMPTY_PATH)
}

// needed are the capabilities that are necessary to run a program as another user and to kill it. The kernel also
// requires CAP_KILL for the parent-death signal. Without CAP_KILL, the program would continue to run after this
// process.
var needed = []struct {
	bit  uint
	name string
}{{unix.CAP_CHOWN, "CHOWN"}, {unix.CAP_SETGID, "SETGID"}, {unix.CAP_SETUID, "SETUID"}, {unix.CAP_KILL, "KILL"}}

// CheckCapabilities returns an error if this process lacks the capabilities for running a program as the owner. It
// returns nil for a nil Owner, or if it cannot read the capabilities.
func (o *Owner) CheckCapabilities() error {
	if o == nil {
		return nil
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	if err := unix.Capget(&header, &sets[0]); err != nil {
		return nil // starting the program reports missing capabilities, too
	}
	var missing []string
	for _, c := range needed {
		if sets[c.bit/32].Effective&(1<<(c.bit%32)) == 0 {
			missing = append(missing, c.name)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return fmt.Errorf("running Envoy as user %d needs capabilities that root does not have here: add %s", o.UID, strings.Join(missing, ", "))
}
