package envoy

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// Source is where an Envoy was found.
type Source string

// The places that are searched, in this order.
const (
	FromFlag        Source = "--envoy-path"
	FromEnvironment Source = "ENVOY_PATH"
	FromCache       Source = "the project's cache"
	FromPath        Source = "PATH"
)

// FindOptions says where to look for Envoy. Empty fields are places not to look at.
type FindOptions struct {
	// Path is the value of --envoy-path.
	Path string
	// EnvPath is the value of ENVOY_PATH.
	EnvPath string
	// CacheDir is the project's cache; an Envoy in it is <CacheDir>/<version>/envoy. What binaries said of their version
	// is remembered there too.
	CacheDir string
	// PathEnv is the value of PATH.
	PathEnv string
	// Timeout bounds how long a binary may take to tell its version; 10 seconds if zero.
	Timeout time.Duration
}

// Binary is an Envoy that was found and is fit.
type Binary struct {
	// Path is absolute.
	Path    string
	Version Version
	Source  Source
}

// Find looks for an Envoy of MinimumVersion or newer: the flag, the environment, the cache (newest first), PATH. One that
// was named (by flag or environment) and is missing or unfit is an error and no reason to look further. Errors are
// *NotFoundError, *TooOldError and *NotEnvoyError, or the context's.
func Find(ctx context.Context, o FindOptions) (Binary, error) {
	if o.Timeout == 0 {
		o.Timeout = 10 * time.Second
	}
	s := search{FindOptions: o, known: openMemory(o.CacheDir)}
	if o.Path != "" {
		return s.named(ctx, o.Path, FromFlag)
	}
	if o.EnvPath != "" {
		return s.named(ctx, o.EnvPath, FromEnvironment)
	}
	return s.unnamed(ctx)
}

type search struct {
	FindOptions
	known  *memory
	looked []string
	tooOld error
}

func (s *search) named(ctx context.Context, path string, source Source) (Binary, error) {
	if err := executable(path); err != nil {
		return Binary{}, &NotFoundError{Looked: []string{fmt.Sprintf("%s from %s: %v", path, source, err)}}
	}
	return s.check(ctx, path, source)
}

func (s *search) unnamed(ctx context.Context) (Binary, error) {
	for _, c := range slices.Concat(s.cached(), s.onPath()) {
		if err := executable(c.path); err != nil {
			if !errors.Is(err, fs.ErrNotExist) {
				s.note("%s: %v", c.path, err)
			}
			continue
		}
		b, err := s.check(ctx, c.path, c.source)
		if err == nil || ctx.Err() != nil {
			return b, err
		}
		s.reject(err)
	}
	if s.tooOld != nil {
		return Binary{}, s.tooOld
	}
	return Binary{}, &NotFoundError{Looked: s.looked}
}

// reject notes why a candidate will not do; the first that was only too old is what the user is told in the end.
func (s *search) reject(err error) {
	var old *TooOldError
	if errors.As(err, &old) && s.tooOld == nil {
		s.tooOld = err
	}
	var other *NotEnvoyError
	if errors.As(err, &other) {
		s.note("%s: %v", other.Path, other.Err)
	}
}

func (s *search) note(format string, args ...any) {
	s.looked = append(s.looked, fmt.Sprintf(format, args...))
}

type candidate struct {
	path   string
	source Source
}

// cached lists the Envoys of the cache, newest first.
func (s *search) cached() []candidate {
	if s.CacheDir == "" {
		return nil
	}
	s.note("%s", filepath.Join(s.CacheDir, "*", "envoy"))
	var versions []Version
	entries, _ := os.ReadDir(s.CacheDir)
	for _, e := range entries {
		if v, err := ParseVersion(e.Name()); err == nil {
			versions = append(versions, v)
		}
	}
	slices.SortFunc(versions, func(a, b Version) int { return b.Compare(a) })
	found := make([]candidate, len(versions))
	for i, v := range versions {
		found[i] = candidate{filepath.Join(s.CacheDir, v.String(), "envoy"), FromCache}
	}
	return found
}

func (s *search) onPath() []candidate {
	if s.PathEnv == "" {
		return nil
	}
	s.note("envoy in PATH (%s)", s.PathEnv)
	var found []candidate
	for _, dir := range filepath.SplitList(s.PathEnv) {
		// An empty entry is the current folder to a shell. What runs unasked is not to depend on where one stands.
		if filepath.IsAbs(dir) {
			found = append(found, candidate{filepath.Join(dir, "envoy"), FromPath})
		}
	}
	return found
}

func executable(path string) error {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return reasonOf(err)
	case info.IsDir():
		return errors.New("is a directory")
	case info.Mode()&0o111 == 0:
		return errors.New("is not executable")
	}
	return nil
}

// reasonOf drops operation and path from a file error, where the message around it names them already.
func reasonOf(err error) error {
	var pathErr *fs.PathError
	if errors.As(err, &pathErr) {
		return pathErr.Err
	}
	return err
}
