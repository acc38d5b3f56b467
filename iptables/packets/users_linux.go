package packets

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// sameUsers refuses a namespace that belongs to another user namespace than ours: its rules speak of that one's users, whom
// nobody can become from outside.
func sameUsers(ns *os.File) error {
	fd, err := unix.IoctlRetInt(int(ns.Fd()), unix.NS_GET_USERNS)
	if errors.Is(err, unix.EPERM) { // an ancestor's: we are inside
		return nil
	}
	if err != nil {
		return fmt.Errorf("ask whom the network namespace belongs to: %w", err)
	}
	defer func() { _ = unix.Close(fd) }()
	var theirs, ours unix.Stat_t
	if err := errors.Join(unix.Fstat(fd, &theirs), unix.Stat("/proc/self/ns/user", &ours)); err != nil {
		return fmt.Errorf("look at user namespaces: %w", err)
	}
	if theirs.Dev != ours.Dev || theirs.Ino != ours.Ino {
		return fmt.Errorf("send as users of another user namespace: %w from outside of it", ErrNotPermitted)
	}
	return nil
}
