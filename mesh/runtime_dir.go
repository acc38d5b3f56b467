package mesh

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// File names in a mesh's runtime directory.
const (
	lockFile      = "lock"
	socketFile    = "control.sock"
	workloadsDir  = "workloads"
	controlDir    = "control-plane"
	networkDir    = "network"
	maxSocketPath = 107 // the kernel's limit for socket addresses, without the terminating zero
)

// DefaultRuntimeDir returns the directory of running meshes: in the user's runtime directory (XDG_RUNTIME_DIR), or in
// /tmp if xdgRuntimeDir is not an absolute path. It is short, because it is part of socket paths.
func DefaultRuntimeDir(xdgRuntimeDir string, uid int) string {
	if filepath.IsAbs(xdgRuntimeDir) {
		return filepath.Join(xdgRuntimeDir, "pilotfish")
	}
	return "/tmp/pilotfish-" + strconv.Itoa(uid)
}

// AlreadyRunningError reports that a mesh with this name is running.
type AlreadyRunningError struct {
	Name string
	// PID is the mesh's process; 0 if unknown.
	PID int
}

func (e *AlreadyRunningError) Error() string {
	who := ""
	if e.PID != 0 {
		who = fmt.Sprintf(" (pid %d)", e.PID)
	}
	return fmt.Sprintf("mesh %q is already running%s: stop it with `pilotfish down --name %s`, or set another name for this mesh with --name", e.Name, who, e.Name)
}

// runtimeDir is the directory of a running mesh. The process that has locked it owns the mesh's name.
type runtimeDir struct {
	path string
	base string
	lock *os.File
	// leftovers contains the program name of each process of an earlier run that had to be killed.
	leftovers []string
}

// claimRuntimeDir claims the name of a mesh. It creates and locks the directory, and removes the files and processes of
// a killed run.
func claimRuntimeDir(base, name string) (*runtimeDir, error) {
	d := &runtimeDir{path: filepath.Join(base, name), base: base}
	if socket := filepath.Join(d.path, socketFile); len(socket) > maxSocketPath {
		return nil, fmt.Errorf("%s is too long for the path of a socket (%d characters, at most %d): set a shorter name of the mesh, or a shorter directory with --runtime-dir or XDG_RUNTIME_DIR", socket, len(socket), maxSocketPath)
	}
	if err := privateDir(base); err != nil {
		return nil, err
	}
	if err := d.lockDir(name); err != nil {
		return nil, err
	}
	if err := d.clearLeftovers(); err != nil {
		_ = d.lock.Close()
		return nil, fmt.Errorf("removing files of an earlier run from %s: %w", d.path, withRemedy(err))
	}
	if err := d.writePID(); err != nil {
		d.remove()
		return nil, err
	}
	return d, nil
}

// privateDir creates a directory that only this user can access. If the directory exists, privateDir checks its owner
// and mode, because other users can create directories in /tmp.
func privateDir(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("creating the runtime directory: %w", withRemedy(err))
	}
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("creating the runtime directory: %w", withRemedy(err))
	}
	info, err := os.Lstat(path)
	if err != nil {
		return fmt.Errorf("checking the runtime directory: %w", err)
	}
	if !info.IsDir() || !ownedByUs(info) || info.Mode().Perm()&0o077 != 0 {
		return fmt.Errorf("the runtime directory %s must be a directory that only this user can use (it is %s): remove it, or set XDG_RUNTIME_DIR to a directory of your own", path, info.Mode())
	}
	return nil
}

// lockDir locks the directory. A run that ends at the same time may remove the directory, so lockDir checks after
// locking that it still exists.
func (d *runtimeDir) lockDir(name string) error {
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
			return fmt.Errorf("locking the file %s: %w", f.Name(), err)
		}
		if !locked {
			defer f.Close()
			return &AlreadyRunningError{Name: name, PID: readPID(f)}
		}
		if isLinked(f) {
			d.lock = f
			return nil
		}
		_ = f.Close()
	}
}

// isLinked reports whether the path of an open file still refers to the same file.
func isLinked(f *os.File) bool {
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

// clearLeftovers kills the processes of a killed run, and removes its files.
func (d *runtimeDir) clearLeftovers() (err error) {
	if d.leftovers, err = killLeftovers(d.path); err != nil {
		return err
	}
	return d.removeContents()
}

// removeContents removes everything except the lock file, which other processes read.
func (d *runtimeDir) removeContents() error {
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

// writePID writes the process ID of the lock's holder into the lock file.
func (d *runtimeDir) writePID() error {
	if err := d.lock.Truncate(0); err != nil {
		return fmt.Errorf("writing %s: %w", d.lock.Name(), withRemedy(err))
	}
	if _, err := d.lock.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0); err != nil {
		return fmt.Errorf("writing %s: %w", d.lock.Name(), withRemedy(err))
	}
	return nil
}

// remove releases the name and removes the directory. It removes the lock file last, while it is locked, and the base
// directory if it is empty.
func (d *runtimeDir) remove() {
	_ = d.removeContents()
	_ = os.Remove(d.lock.Name())
	_ = os.Remove(d.path)
	_ = os.Remove(d.base)
	_ = d.lock.Close()
}
