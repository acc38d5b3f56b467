package ca

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
)

// Files of an authority. They are in authorityDir inside the state directory, which is created atomically together with
// all its files.
const (
	authorityDir = "authority"
	rootCertFile = "root-cert.pem"
	rootKeyFile  = "root-key.pem"
	tokenKeyFile = "token-key.pem"

	// maxFile is the maximum size of a file, in bytes. Valid files have a few hundred bytes.
	maxFile = 64 << 10
)

// startAgain is the remedy for an authority that cannot be repaired.
const startAgain = "move that directory away and restart the control plane, which then creates a new root; " +
	"then every workload needs the new root certificate and a new token"

// dirStore is a Store in a directory. dir is the state directory.
type dirStore struct {
	dir string
	log *slog.Logger
}

// NewDirStore returns the store in the state directory dir. It logs warnings about access by other users.
func NewDirStore(dir string, log *slog.Logger) Store { return dirStore{dir: dir, log: log} }

func (s dirStore) path() string { return filepath.Join(s.dir, authorityDir) }

// Location implements Store.
func (s dirStore) Location() string { return s.path() }

// Remedy implements Store.
func (s dirStore) Remedy() string { return startAgain }

// Read implements Store. It removes other users' permissions for the directory.
func (s dirStore) Read(context.Context) (Material, error) {
	if err := s.exists(); err != nil {
		return Material{}, err
	}
	if err := s.tighten(); err != nil {
		return Material{}, err
	}
	g, err := s.readGenerations()
	if err != nil {
		return Material{}, err
	}
	for {
		m, err := s.readRoots(g)
		if err == nil {
			return m, nil
		}
		// Another process may have removed a root meanwhile.
		now, againErr := s.readGenerations()
		if againErr != nil || now.encoded == g.encoded {
			return Material{}, err
		}
		g = now
	}
}

func (s dirStore) readRoots(g generations) (m Material, err error) {
	m = Material{Since: g.Since, Retire: g.Retire, Version: g.encoded}
	if m.Active, err = s.readPair(g.Active); err != nil {
		return m, err
	}
	if g.Announced > 0 {
		if m.Announced, err = s.readOptionalPair(g.Announced); err != nil {
			return m, err
		}
	}
	if g.Previous > 0 {
		m.Previous, err = s.readOptionalPair(g.Previous - 1)
	}
	return m, err
}

// exists returns an error that wraps fs.ErrNotExist if there is no authority.
func (s dirStore) exists() error {
	_, err := os.Stat(s.path())
	if errors.Is(err, fs.ErrNotExist) {
		return missingAuthorityError(s.dir)
	}
	if err != nil {
		return s.explain("opening the certificate authority", err)
	}
	return nil
}

// missingAuthorityError reports that the state directory with this path contains no authority.
type missingAuthorityError string

func (e missingAuthorityError) Error() string {
	return fmt.Sprintf("there is no certificate authority in %s: specify the control plane's state directory; "+
		"the control plane creates the authority when it first starts", string(e))
}

func (missingAuthorityError) Is(target error) bool { return target == fs.ErrNotExist }

func (s dirStore) readPair(generation int) (p KeyPair, err error) {
	dir := s.generationDir(generation)
	if p.Certificate, err = readPart(dir, rootCertFile, false); err == nil {
		p.Key, err = readPart(dir, rootKeyFile, true)
	}
	return p, err
}

func (s dirStore) readOptionalPair(generation int) (*KeyPair, error) {
	p, err := s.readPair(generation)
	if err != nil {
		return nil, fmt.Errorf("root %d: %w", generation, err)
	}
	return &p, nil
}

// TokenKey implements Store.
func (s dirStore) TokenKey(context.Context) (File, error) {
	return readPart(s.path(), tokenKeyFile, true)
}

func readPart(dir, name string, secret bool) (File, error) {
	data, err := readFile(filepath.Join(dir, name), secret, startAgain)
	return File{name, data}, err
}

// Create implements Store. It writes a new authority to a temporary directory, and then renames the directory. If
// several processes do this at the same time, only one rename succeeds, and the other processes use its result.
func (s dirStore) Create(_ context.Context, m Material, tokenKey []byte) error {
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return s.explain("creating the state directory", err)
	}
	draft, err := os.MkdirTemp(s.dir, "."+authorityDir+"-")
	if err != nil {
		return s.explain("creating a certificate authority", err)
	}
	defer func() { _ = os.RemoveAll(draft) }()
	if err := writeFiles(draft, m.Active.Certificate, m.Active.Key, File{tokenKeyFile, tokenKey}); err != nil {
		return s.explain("creating a certificate authority", err)
	}
	return s.publish(draft)
}

func (s dirStore) publish(draft string) error {
	err := os.Rename(draft, s.path())
	if errors.Is(err, fs.ErrExist) {
		return nil // another process has created the authority
	}
	if err != nil {
		return s.explain("creating a certificate authority", err)
	}
	if err := syncDir(s.dir); err != nil {
		return s.explain("creating a certificate authority", err)
	}
	return nil
}

// writeFiles writes and syncs all files, so that they survive a power failure or a crash of the kernel.
func writeFiles(dir string, files ...File) error {
	for _, f := range files {
		if err := writeFile(filepath.Join(dir, f.Name), f.Data); err != nil {
			return err
		}
	}
	return syncDir(dir)
}

func writeFile(path string, data []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	err = d.Sync()
	if errors.Is(err, syscall.EINVAL) {
		err = nil // some network file systems cannot sync directories, so this is not an error
	}
	return errors.Join(err, d.Close())
}

// warnOfWriters logs a warning if other users can write to the state directory, because they can then replace the
// authority. This is not an error, because volumes in Kubernetes have such a mode, although only one pod uses them.
func (s dirStore) warnOfWriters() {
	info, err := os.Stat(s.dir)
	if err != nil || info.Mode().Perm()&0o022 == 0 || info.Mode()&fs.ModeSticky != 0 {
		return
	}
	s.log.Warn("other users can write to the state directory and could replace the certificate authority",
		"directory", s.dir, "mode", fmt.Sprintf("%04o", info.Mode().Perm()), "remedy", "chmod go-w "+s.dir)
}

// tighten removes other users' permissions for the authority's directory. readFile checks the permissions of each file.
func (s dirStore) tighten() error {
	info, err := os.Stat(s.path())
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return errors.New("the path is a file, not a directory: move the file away")
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		if err := os.Chmod(s.path(), 0o700); err != nil {
			return fmt.Errorf("other users can enter the directory (mode %04o), and changing the mode failed: %w: change the owner to the user of the control plane, and run chmod 700", mode, err)
		}
		s.log.Warn("removed other users' access to the certificate authority's directory",
			"directory", s.path(), "mode", fmt.Sprintf("%04o", mode))
	}
	return nil
}

// readFile reads the file path of an authority. If secret is true, it fails if other users can access the file. remedy
// describes how to replace the authority, for errors.
func readFile(path string, secret bool, remedy string) ([]byte, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s is missing: restore the directory from a backup, or %s", filepath.Base(path), remedy)
	}
	if errors.Is(err, fs.ErrPermission) {
		return nil, fmt.Errorf("%w: start the control plane as the user who owns the file", err)
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	if secret {
		if err := checkSecret(f, remedy); err != nil {
			return nil, err
		}
	}
	return io.ReadAll(io.LimitReader(f, maxFile))
}

// checkSecret returns an error if other users can read or write the key file f. It does not correct the mode, because
// the key may already be compromised.
func checkSecret(f *os.File, remedy string) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		return fmt.Errorf("other users can read or write %s (mode %04o); a user who read it can impersonate any workload of the mesh: "+
			"if no other user has read it, run chmod 600 on it; otherwise %s", filepath.Base(f.Name()), mode, remedy)
	}
	return nil
}

// explain adds the directory and the remedy to a file system error.
func (s dirStore) explain(doing string, err error) error {
	remedy := "specify another state directory"
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT), errors.Is(err, syscall.EFBIG):
		remedy = "free space on its disk, or specify another state directory"
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		remedy = "make the directory writable for this user, or specify another state directory"
	case errors.Is(err, syscall.ENOTDIR):
		remedy = "a part of the path is a file; specify another state directory"
	}
	return fmt.Errorf("%s in %s: %w: %s", doing, s.dir, err, remedy)
}
