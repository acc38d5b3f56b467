package mesh

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// The names in a mesh's runtime directory.
const (
	lockFile      = "lock"
	socketFile    = "control.sock"
	workloadsDir  = "workloads"
	controlDir    = "control-plane"
	networkDir    = "network"
	maxSocketPath = 107 // what the kernel has room for in an address, less the closing zero
)

// DefaultRuntimeDir is where running meshes are kept: a folder of the user's runtime directory (XDG_RUNTIME_DIR), or
// one in /tmp where there is none. It is short, because sockets are in it.
func DefaultRuntimeDir(xdgRuntimeDir string, uid int) string {
	if filepath.IsAbs(xdgRuntimeDir) {
		return filepath.Join(xdgRuntimeDir, "pilotfish")
	}
	return "/tmp/pilotfish-" + strconv.Itoa(uid)
}

// AlreadyRunningError says that a mesh of the name runs already.
type AlreadyRunningError struct {
	Name string
	// PID is the process that runs it; 0 if unknown.
	PID int
}

func (e *AlreadyRunningError) Error() string {
	who := ""
	if e.PID != 0 {
		who = fmt.Sprintf(" (pid %d)", e.PID)
	}
	return fmt.Sprintf("mesh %q is running already%s: end it with `pilotfish down --name %s`, or give this one another name with --name", e.Name, who, e.Name)
}

// runtimeDir is a mesh's folder for as long as it runs. Whoever holds the lock in it owns the name.
type runtimeDir struct {
	path string
	base string
	lock *os.File
	// leftovers are the programs of an earlier run's processes that had to be ended, one for each.
	leftovers []string
}

// claimRuntimeDir takes the name of a mesh: it makes the folder, locks it, and clears what a run left there that could
// not end in order.
func claimRuntimeDir(base, name string) (*runtimeDir, error) {
	d := &runtimeDir{path: filepath.Join(base, name), base: base}
	if socket := filepath.Join(d.path, socketFile); len(socket) > maxSocketPath {
		return nil, fmt.Errorf("%s is too long for a socket's path (%d characters, at most %d): give the mesh a shorter name, or name a shorter folder with --runtime-dir or XDG_RUNTIME_DIR", socket, len(socket), maxSocketPath)
	}
	if err := privateDir(base); err != nil {
		return nil, err
	}
	if err := d.claim(name); err != nil {
		return nil, err
	}
	if err := d.clear(); err != nil {
		_ = d.lock.Close()
		return nil, fmt.Errorf("clearing %s of an earlier run: %w", d.path, withRemedy(err))
	}
	if err := d.sign(); err != nil {
		d.remove()
		return nil, err
	}
	return d, nil
}

// privateDir makes a folder that is this user's alone, or makes sure that it is: others must not be able to put a
// folder of theirs in our place, least of all in /tmp.
func privateDir(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("making the runtime directory: %w", withRemedy(err))
	}
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("making the runtime directory: %w", withRemedy(err))
	}
	info, err := os.Lstat(path)
	if err != nil {
		return fmt.Errorf("looking at the runtime directory: %w", err)
	}
	if !info.IsDir() || !ownedByUs(info) || info.Mode().Perm()&0o077 != 0 {
		return fmt.Errorf("the runtime directory %s is not a folder that only this user can use (it is %s): remove it, or set XDG_RUNTIME_DIR to a folder of your own", path, info.Mode())
	}
	return nil
}

// claim locks the folder. It may be removed by a run that ends just now, so it is looked at again once it is locked.
func (d *runtimeDir) claim(name string) error {
	for {
		if err := privateDir(d.path); err != nil {
			return err
		}
		f, err := os.OpenFile(filepath.Join(d.path, lockFile), os.O_RDWR|os.O_CREATE, 0o600)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("locking the runtime directory: %w", withRemedy(err))
		}
		locked, err := tryLock(f)
		if err != nil {
			_ = f.Close()
			return fmt.Errorf("locking %s: %w", f.Name(), err)
		}
		if !locked {
			defer f.Close()
			return &AlreadyRunningError{Name: name, PID: readPID(f)}
		}
		if sameFile(f) {
			d.lock = f
			return nil
		}
		_ = f.Close()
	}
}

// sameFile says whether the open file is still the one that its path names.
func sameFile(f *os.File) bool {
	opened, err := f.Stat()
	if err != nil {
		return false
	}
	named, err := os.Stat(f.Name())
	return err == nil && os.SameFile(opened, named)
}

func readPID(f *os.File) int {
	buf := make([]byte, 32)
	n, _ := f.ReadAt(buf, 0)
	pid, _ := strconv.Atoi(strings.TrimSpace(string(buf[:n])))
	return pid
}

// clear ends the processes of a run that could not end in order, and removes its files.
func (d *runtimeDir) clear() (err error) {
	if d.leftovers, err = killLeftovers(d.path); err != nil {
		return err
	}
	return d.empty()
}

// empty removes everything but the lock, which others look at.
func (d *runtimeDir) empty() error {
	entries, err := os.ReadDir(d.path)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Name() == lockFile {
			continue
		}
		if err := os.RemoveAll(filepath.Join(d.path, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

// sign writes who holds the lock into it.
func (d *runtimeDir) sign() error {
	if err := d.lock.Truncate(0); err != nil {
		return fmt.Errorf("writing %s: %w", d.lock.Name(), withRemedy(err))
	}
	if _, err := d.lock.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0); err != nil {
		return fmt.Errorf("writing %s: %w", d.lock.Name(), withRemedy(err))
	}
	return nil
}

// remove gives the name back and leaves nothing: the lock goes last, while it is held, and the base folder too when it
// is empty.
func (d *runtimeDir) remove() {
	_ = d.empty()
	_ = os.Remove(d.lock.Name())
	_ = os.Remove(d.path)
	_ = os.Remove(d.base)
	_ = d.lock.Close()
}
