package sandbox

import (
	"errors"
	"fmt"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

// checkOwner returns an error unless the node's root user created the network namespace, as container runtimes do. The
// namespace must belong to the node's user namespace or, for pods with hostUsers: false, to a user namespace that root
// created. Without this check, any user of the node could present a network namespace as a pod's.
func (x *Index) checkOwner(s *Sandbox) error {
	users, err := ioctl(int(s.NetNS.Fd()), unix.NS_GET_USERNS, nil)
	switch {
	case errors.Is(err, unix.ENOTTY): // the kernel does not support this ioctl
		return nil
	case err != nil:
		return fmt.Errorf("cannot determine the owner of network namespace %s: %w", s.ID, err)
	}
	defer func() { _ = unix.Close(users) }()
	var stat unix.Stat_t
	if err := unix.Fstat(users, &stat); err != nil {
		return err
	}
	if slices.Contains(x.user, ID{uint64(stat.Dev), stat.Ino}) {
		return nil
	}
	var owner uint32
	if _, err := ioctl(users, unix.NS_GET_OWNER_UID, &owner); err != nil && !errors.Is(err, unix.ENOTTY) {
		return fmt.Errorf("cannot determine the user who created network namespace %s: %w", s.ID, err)
	}
	if owner != 0 {
		return fmt.Errorf("network namespace %s was created by user %d, not by the node's container runtime", s.ID, owner)
	}
	return nil
}

func ioctl(fd int, request uintptr, result *uint32) (int, error) {
	r, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(unsafe.Pointer(result))) // #nosec G103 -- required by ioctl
	if errno != 0 {
		return -1, errno
	}
	return int(r), nil
}
