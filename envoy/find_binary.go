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

// Source is the location in which an Envoy binary was found.
type Source string

// The searched locations, in search order.
const (
	FromFlag        Source = "--envoy-path"
	FromEnvironment Source = "ENVOY_PATH"
	FromProxyConfig Source = "binaryPath of ProxyConfig"
	FromCache       Source = "the project's cache"
	FromPath        Source = "PATH"
)

// FindOptions configures Find. Find skips a location whose field is empty.
type FindOptions struct {
	// Path is the value of --envoy-path.
	Path string
	// EnvPath is the value of ENVOY_PATH.
	EnvPath string
	// ConfiguredPath is ProxyConfig's binaryPath.
	ConfiguredPath string
	// CacheDir is the project's cache with binaries in <CacheDir>/<version>/envoy. The versions that binaries report
	// are cached in the file versions.json of this directory.
	CacheDir string
	// PathEnv is the value of PATH.
	PathEnv string
	// Timeout limits the query of a binary's version; default 10 seconds.
	Timeout time.Duration
	// DeferVersion makes Find return a binary without executing it, if the binary is the only candidate. Binary.Version
	// is then from the cache, or else from the version file, or zero. The caller starts Envoy and calls ConfirmVersion
	// or QueryVersion later.
	DeferVersion bool
}

// Binary is an Envoy binary. Its version is supported, unless Unconfirmed is true.
type Binary struct {
	// Path is absolute.
	Path    string
	Version Version
	Source  Source
	// Unconfirmed is true if the version is zero or from the version file, because of FindOptions.DeferVersion.
	Unconfirmed bool
}

// Find searches for an Envoy binary of MinimumVersion or newer, in this order: flag, environment, ProxyConfig, cache
// (newest first), PATH. If one of the first three names a binary that is missing, is not Envoy or is too old, Find
// fails without further search. The error is a *NotFoundError, *TooOldError or *NotEnvoyError, or the context's error.
func Find(ctx context.Context, o FindOptions) (Binary, error) {
	s := newSearch(o)
	if o.Path != "" {
		return s.findNamed(ctx, o.Path, FromFlag)
	}
	if o.EnvPath != "" {
		return s.findNamed(ctx, o.EnvPath, FromEnvironment)
	}
	if o.ConfiguredPath != "" {
		return s.findNamed(ctx, o.ConfiguredPath, FromProxyConfig)
	}
	return s.findUnnamed(ctx)
}

type search struct {
	FindOptions
	cache    *versionCache
	searched []string
	tooOld   error
}

func newSearch(o FindOptions) *search {
	if o.Timeout == 0 {
		o.Timeout = versionTimeout
	}
	return &search{FindOptions: o, cache: openVersionCache(o.CacheDir)}
}

func (s *search) findNamed(ctx context.Context, path string, source Source) (Binary, error) {
	if err := checkExecutable(path); err != nil {
		return Binary{}, &NotFoundError{Searched: []string{fmt.Sprintf("%s from %s: %v", path, source, err)}}
	}
	return s.checkBinary(ctx, path, source)
}

func (s *search) findUnnamed(ctx context.Context) (Binary, error) {
	candidates := s.listExecutables()
	s.DeferVersion = s.DeferVersion && len(candidates) == 1
	for _, c := range candidates {
		b, err := s.checkBinary(ctx, c.path, c.source)
		if err == nil || ctx.Err() != nil {
			return b, err
		}
		s.recordRejection(err)
	}
	if s.tooOld != nil {
		return Binary{}, s.tooOld
	}
	return Binary{}, &NotFoundError{Searched: s.searched}
}

// listExecutables returns the executable files of the cache and of PATH, in search order. It records why other files
// cannot be executed.
func (s *search) listExecutables() []candidate {
	var found []candidate
	for _, c := range slices.Concat(s.listCache(), s.listPath()) {
		err := checkExecutable(c.path)
		switch {
		case err == nil:
			found = append(found, c)
		case !errors.Is(err, fs.ErrNotExist):
			s.recordSearched("%s: %v", c.path, err)
		}
	}
	return found
}

// recordRejection records why a candidate was rejected. If all candidates are rejected, Find returns the first
// *TooOldError.
func (s *search) recordRejection(err error) {
	var old *TooOldError
	if errors.As(err, &old) && s.tooOld == nil {
		s.tooOld = err
	}
	var notEnvoy *NotEnvoyError
	if errors.As(err, &notEnvoy) {
		s.recordSearched("%s: %v", notEnvoy.Path, notEnvoy.Err)
	}
}

func (s *search) recordSearched(format string, args ...any) {
	s.searched = append(s.searched, fmt.Sprintf(format, args...))
}

type candidate struct {
	path   string
	source Source
}

// listCache returns the cached Envoy binaries, newest version first.
func (s *search) listCache() []candidate {
	if s.CacheDir == "" {
		return nil
	}
	s.recordSearched("%s", filepath.Join(s.CacheDir, "*", "envoy"))
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

func (s *search) listPath() []candidate {
	if s.PathEnv == "" {
		return nil
	}
	s.recordSearched("envoy in PATH (%s)", s.PathEnv)
	var found []candidate
	for _, dir := range filepath.SplitList(s.PathEnv) {
		// Shells interpret an empty entry of PATH as the working directory. An automatic search must not depend on the
		// working directory.
		if filepath.IsAbs(dir) {
			found = append(found, candidate{filepath.Join(dir, "envoy"), FromPath})
		}
	}
	return found
}

func checkExecutable(path string) error {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return unwrapPathError(err)
	case info.IsDir():
		return errors.New("is a directory")
	case info.Mode()&0o111 == 0:
		return errors.New("is not executable")
	}
	return nil
}

// unwrapPathError removes operation and path from a file error, because the caller's message names them.
func unwrapPathError(err error) error {
	var pathErr *fs.PathError
	if errors.As(err, &pathErr) {
		return pathErr.Err
	}
	return err
}
