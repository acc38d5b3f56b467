package mesh

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"
)

// withRemedy adds what to do to an error of the file system.
func withRemedy(err error) error {
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return fmt.Errorf("%w: the disk is full: free some space, or choose another place with XDG_RUNTIME_DIR or --state-dir", err)
	case errors.Is(err, syscall.EFBIG):
		return fmt.Errorf("%w: files may not grow further: raise the limit (`ulimit -f`)", err)
	case errors.Is(err, syscall.EROFS):
		return fmt.Errorf("%w: choose another place with XDG_RUNTIME_DIR or --state-dir", err)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w: make it writable for this user, or choose another place with XDG_RUNTIME_DIR or --state-dir", err)
	}
	return err
}
