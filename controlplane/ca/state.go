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

// The files of an authority. They are in a directory of their own inside the state directory, which comes to exist with
// all of them or not at all.
const (
	authorityDir = "authority"
	rootCertFile = "root-cert.pem"
	rootKeyFile  = "root-key.pem"
	tokenKeyFile = "token-key.pem"

	// largestFile bounds what is read: these files have a few hundred bytes.
	largestFile = 64 << 10
)

// startAnew is the remedy for an authority that cannot be mended.
const startAnew = "move that directory away and start again, which makes a new root; " +
	"then every workload needs the new root certificate and a new token"

// state is an authority's place on disk.
type state struct {
	dir string
	log *slog.Logger
}

func (s state) path() string { return filepath.Join(s.dir, authorityDir) }

// open reads the authority, after making it where there is none.
func (s state) open(opts Options) (*material, error) {
	if s.dir == "" {
		return nil, errors.New("the certificate authority needs a state directory, and none is given")
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
		return s.explain("looking for a certificate authority", err)
	case opts.MustExist:
		return fmt.Errorf("there is no certificate authority in %s: give the control plane's state directory; "+
			"the control plane makes the authority when it first starts", s.dir)
	}
	return s.create(opts.TrustDomain, opts.Clock())
}

// create makes an authority beside its place and renames it there, which succeeds for one process only: all others that
// do the same at the same time use that one's.
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
		return s.explain("making the state directory", err)
	}
	draft, err := os.MkdirTemp(s.dir, "."+authorityDir+"-")
	if err != nil {
		return s.explain("making a certificate authority", err)
	}
	defer func() { _ = os.RemoveAll(draft) }()
	if err := m.write(draft); err != nil {
		return s.explain("making a certificate authority", err)
	}
	return s.publish(draft, m)
}

func (s state) publish(draft string, m *material) error {
	err := os.Rename(draft, s.path())
	if errors.Is(err, fs.ErrExist) {
		return nil // another process was faster
	}
	if err != nil {
		return s.explain("making a certificate authority", err)
	}
	if err := syncDir(s.dir); err != nil {
		return s.explain("making a certificate authority", err)
	}
	s.log.Info("made a certificate authority", "directory", s.path(), "trustDomain", m.trustDomain, "notAfter", m.root.NotAfter)
	return nil
}

// write puts all files on disk, so that they survive a crash of the machine.
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
		err = nil // some network file systems sync no directories
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
		content, err := readFile(filepath.Join(dir, name), name != rootCertFile, startAnew)
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
		return nil, fmt.Errorf("%s is damaged (%w): restore the directory from a backup, or %s", name, err, startAnew)
	}
	return m, nil
}

// warnOfWriters warns when other users could put an authority of their own in this one's place. It is not refused:
// volumes of Kubernetes come with such a mode, and belong to one pod.
func (s state) warnOfWriters() {
	info, err := os.Stat(s.dir)
	if err != nil || info.Mode().Perm()&0o022 == 0 || info.Mode()&fs.ModeSticky != 0 {
		return
	}
	s.log.Warn("other users can write to the state directory, and so replace the certificate authority",
		"directory", s.dir, "mode", fmt.Sprintf("%04o", info.Mode().Perm()), "remedy", "chmod go-w "+s.dir)
}

// tighten closes the directory to others. What they may have read before is checked file by file.
func (s state) tighten() error {
	info, err := os.Stat(s.path())
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return errors.New("it is a file, not a directory: move it away")
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		if err := os.Chmod(s.path(), 0o700); err != nil {
			return fmt.Errorf("other users can enter the directory (mode %04o): %w: chmod 700 it", mode, err)
		}
		s.log.Warn("other users could enter the certificate authority's directory, and now cannot",
			"directory", s.path(), "mode", fmt.Sprintf("%04o", mode))
	}
	return nil
}

// readFile reads a file of an authority; anew says how to replace all of it.
func readFile(path string, secret bool, anew string) ([]byte, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s is missing: restore the directory from a backup, or %s", filepath.Base(path), anew)
	}
	if errors.Is(err, fs.ErrPermission) {
		return nil, fmt.Errorf("%w: start as the user who owns it", err)
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	if secret {
		if err := checkSecret(f, anew); err != nil {
			return nil, err
		}
	}
	return io.ReadAll(io.LimitReader(f, largestFile))
}

// checkSecret refuses a key that others can read or write. It is not tightened silently: a key that others may have read
// signs any identity for them.
func checkSecret(f *os.File, anew string) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		return fmt.Errorf("other users can read or write %s (mode %04o), and who read it can be anyone in the mesh: "+
			"if nobody did, chmod 600 it; otherwise %s", filepath.Base(f.Name()), mode, anew)
	}
	return nil
}

// explain adds to an error of the file system which directory it is about, and what mends it.
func (s state) explain(doing string, err error) error {
	remedy := "give another state directory"
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT), errors.Is(err, syscall.EFBIG):
		remedy = "free space there, or give another state directory"
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		remedy = "make it writable for this user, or give another state directory"
	case errors.Is(err, syscall.ENOTDIR):
		remedy = "a part of that path is a file; give another state directory"
	}
	return fmt.Errorf("%s in %s: %w: %s", doing, s.dir, err, remedy)
}
