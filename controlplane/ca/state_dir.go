package ca

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"time"
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

// state gives access to an authority's files. dir is the state directory.
type state struct {
	dir string
	log *slog.Logger
}

func (s state) path() string { return filepath.Join(s.dir, authorityDir) }

// open reads the authority. If none exists, open creates one unless opts.MustExist is set.
func (s state) open(opts Options) (*material, error) {
	if s.dir == "" {
		return nil, errors.New("the certificate authority needs a state directory, but none is specified")
	}
	if err := s.ensure(opts); err != nil {
		return nil, err
	}
	s.warnOfWriters()
	m, err := s.read()
	if err == nil && opts.PlugIn == "" {
		err = m.check(opts.TrustDomain, opts.Clock())
	}
	if err != nil {
		return nil, fmt.Errorf("the certificate authority in %s: %w", s.path(), err)
	}
	return m, nil
}

func (s state) ensure(opts Options) error {
	_, err := os.Stat(s.path())
	switch {
	case err == nil:
		return nil
	case !errors.Is(err, fs.ErrNotExist):
		return s.explain("opening the certificate authority", err)
	case opts.MustExist:
		return fmt.Errorf("there is no certificate authority in %s: specify the control plane's state directory; "+
			"the control plane creates the authority when it first starts", s.dir)
	}
	return s.create(opts.TrustDomain, opts.Clock())
}

// create writes a new authority to a temporary directory, and then renames the directory. If several processes do this
// at the same time, only one rename succeeds, and the other processes use its result.
func (s state) create(trustDomain string, now time.Time) error {
	if trustDomain == "" {
		trustDomain = DefaultTrustDomain
	}
	if err := validateTrustDomain(trustDomain); err != nil {
		return err
	}
	m, err := newMaterial(trustDomain, now)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return s.explain("creating the state directory", err)
	}
	draft, err := os.MkdirTemp(s.dir, "."+authorityDir+"-")
	if err != nil {
		return s.explain("creating a certificate authority", err)
	}
	defer func() { _ = os.RemoveAll(draft) }()
	if err := m.write(draft); err != nil {
		return s.explain("creating a certificate authority", err)
	}
	return s.publish(draft, m)
}

func (s state) publish(draft string, m *material) error {
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
	s.log.Info("created a certificate authority", "directory", s.path(), "trustDomain", m.trustDomain, "notAfter", m.root.NotAfter)
	return nil
}

// write writes and syncs all files, so that they survive a power failure or a crash of the kernel.
func (m *material) write(dir string) error {
	rootKey, err := encodeKey(m.rootKey)
	if err != nil {
		return err
	}
	tokenKey, err := encodeKey(m.tokenKey)
	if err != nil {
		return err
	}
	for _, f := range []struct {
		name string
		data []byte
	}{{rootCertFile, encodeCertificate(m.root)}, {rootKeyFile, rootKey}, {tokenKeyFile, tokenKey}} {
		if err := writeFile(filepath.Join(dir, f.name), f.data); err != nil {
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

func (s state) read() (*material, error) {
	if err := s.tighten(); err != nil {
		return nil, err
	}
	generations, err := s.readGenerations()
	if err != nil {
		return nil, err
	}
	data := map[string][]byte{}
	for _, name := range []string{rootCertFile, rootKeyFile, tokenKeyFile} {
		dir := s.path()
		if name != tokenKeyFile {
			dir = s.generationDir(generations.Active)
		}
		content, err := readFile(filepath.Join(dir, name), name != rootCertFile, startAgain)
		if err != nil {
			return nil, err
		}
		data[name] = content
	}
	m, name := &material{}, rootCertFile
	if m.root, m.trustDomain, err = parseRoot(data[name]); err == nil {
		name = rootKeyFile
		m.rootKey, err = parseKey(data[name])
	}
	if err == nil {
		name = tokenKeyFile
		m.tokenKey, err = parseKey(data[name])
	}
	if err != nil {
		return nil, fmt.Errorf("%s is damaged (%w): restore the directory from a backup, or %s", name, err, startAgain)
	}
	return m, nil
}

// warnOfWriters logs a warning if other users can write to the state directory, because they can then replace the
// authority. This is not an error, because volumes in Kubernetes have such a mode, although only one pod uses them.
func (s state) warnOfWriters() {
	info, err := os.Stat(s.dir)
	if err != nil || info.Mode().Perm()&0o022 == 0 || info.Mode()&fs.ModeSticky != 0 {
		return
	}
	s.log.Warn("other users can write to the state directory and could replace the certificate authority",
		"directory", s.dir, "mode", fmt.Sprintf("%04o", info.Mode().Perm()), "remedy", "chmod go-w "+s.dir)
}

// tighten removes other users' permissions for the authority's directory. readFile checks the permissions of each file.
func (s state) tighten() error {
	info, err := os.Stat(s.path())
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return errors.New("the path is a file, not a directory: move the file away")
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		if err := os.Chmod(s.path(), 0o700); err != nil {
			return fmt.Errorf("other users can enter the directory (mode %04o): %w: run chmod 700 on it", mode, err)
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
func (s state) explain(doing string, err error) error {
	remedy := "specify another state directory"
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT), errors.Is(err, syscall.EFBIG):
		remedy = "free space there, or specify another state directory"
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		remedy = "make it writable for this user, or specify another state directory"
	case errors.Is(err, syscall.ENOTDIR):
		remedy = "a part of that path is a file; specify another state directory"
	}
	return fmt.Errorf("%s in %s: %w: %s", doing, s.dir, err, remedy)
}
