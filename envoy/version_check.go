package envoy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/atomicfile"
	"github.com/pilotfish-mesh/pilotfish/internal/regularfile"
)

const maxVersionOutput = 4096

// checkBinary determines a binary's version and compares it with MinimumVersion. If DeferVersion is true and the
// version is not cached, it reads the version file instead of executing the binary, and does not compare the version.
func (s *search) checkBinary(ctx context.Context, path string, source Source) (Binary, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return Binary{}, fmt.Errorf("finding Envoy: %w", err)
	}
	b := Binary{Path: path, Source: source}
	if v, ok := s.cache.lookup(path); ok {
		b.Version = v
		return b, b.checkSupported()
	}
	if s.DeferVersion {
		b.Version, b.Unconfirmed = readVersionFile(path), true
		return b, nil
	}
	return s.queryVersion(ctx, b)
}

// checkSupported returns a *TooOldError if the version is known but not supported.
func (b Binary) checkSupported() error {
	if b.Version != (Version{}) && b.Version.Compare(MinimumVersion) < 0 {
		return &TooOldError{Binary: b, Minimum: MinimumVersion}
	}
	return nil
}

// queryVersion executes the binary to query its version, caches the version, and compares it with MinimumVersion. This
// costs about 30 ms of CPU time.
func (s *search) queryVersion(ctx context.Context, b Binary) (Binary, error) {
	limited, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	v, err := queryVersion(limited, b.Path, s.Timeout)
	if err != nil {
		if ctx.Err() != nil {
			return Binary{}, fmt.Errorf("querying the version of %s: %w", b.Path, context.Cause(ctx))
		}
		var bad *NotEnvoyError
		if errors.As(err, &bad) {
			bad.Source = b.Source
		}
		return Binary{}, err
	}
	b.Version, b.Unconfirmed = v, false
	s.cache.store(b.Path, v)
	return b, b.checkSupported()
}

// QueryVersion executes the binary b to query its version, and caches the version. It returns b with this version, or a
// *TooOldError, a *NotEnvoyError or the context's error.
func (o FindOptions) QueryVersion(ctx context.Context, b Binary) (Binary, error) {
	return newSearch(o).queryVersion(ctx, b)
}

// ConfirmVersion returns the binary with the version that its running process reported, and caches the version. It
// returns a *TooOldError if the version is not supported.
func (o FindOptions) ConfirmVersion(b Binary, v Version) (Binary, error) {
	b.Version, b.Unconfirmed = v, false
	s := newSearch(o)
	if known, ok := s.cache.lookup(b.Path); !ok || known != v {
		s.cache.store(b.Path, v)
	}
	return b, b.checkSupported()
}

// versionFileSuffix is the suffix that is appended to a binary's path to form the path of its version file. A container
// image can contain this file, with the version or the output of `envoy --version`.
const versionFileSuffix = ".version"

// readVersionFile returns the version in a binary's version file. It returns the zero value if the file cannot be read
// or contains no version.
func readVersionFile(path string) Version {
	text, err := regularfile.Read(path+versionFileSuffix, maxVersionOutput)
	if err != nil {
		return Version{}
	}
	v, err := ParseVersion(strings.TrimSpace(string(text)))
	if err != nil {
		v, _ = parseVersionOutput(string(text))
	}
	return v
}

func queryVersion(ctx context.Context, path string, timeout time.Duration) (Version, error) {
	out := &headBuffer{limit: maxVersionOutput}
	cmd := exec.CommandContext(ctx, path, "--version")
	cmd.Stdout, cmd.Stderr = out, out
	setProcessGroup(cmd)
	cmd.Cancel = func() error { return killGroup(cmd.Process.Pid) }
	cmd.WaitDelay = outputWaitDelay
	err := cmd.Run()
	if ctx.Err() != nil {
		err = fmt.Errorf("it did not report its version within %v", timeout)
	}
	if err != nil {
		return Version{}, &NotEnvoyError{Path: path, Output: out.firstLine(), Err: fmt.Errorf("querying its version: %w", err)}
	}
	v, err := parseVersionOutput(out.String())
	if err != nil {
		return Version{}, &NotEnvoyError{Path: path, Output: out.firstLine(), Err: err}
	}
	return v, nil
}

// headBuffer stores the beginning of the data that is written to it.
type headBuffer struct {
	strings.Builder
	limit int
}

func (b *headBuffer) Write(p []byte) (int, error) {
	if room := b.limit - b.Len(); room > 0 {
		b.Builder.Write(p[:min(room, len(p))])
	}
	return len(p), nil
}

func (b *headBuffer) firstLine() string { return firstLine(b.String()) }

// versionCache caches the versions of binaries until their files change. If the cache's own file cannot be read, the
// cache is empty, and the caller queries the binaries again.
type versionCache struct {
	file  string
	Known map[string]cachedVersion `json:"known"`
}

type cachedVersion struct {
	Size     int64     `json:"size"`
	Modified time.Time `json:"modified"`
	Version  string    `json:"version"`
}

func openVersionCache(dir string) *versionCache {
	m := &versionCache{}
	if dir == "" {
		return m
	}
	m.file = filepath.Join(dir, "versions.json")
	if data, err := os.ReadFile(m.file); err == nil {
		_ = json.Unmarshal(data, m)
	}
	return m
}

func (m *versionCache) lookup(path string) (Version, bool) {
	known, ok := m.Known[path]
	info, err := os.Stat(path)
	if !ok || err != nil || info.Size() != known.Size || !info.ModTime().Equal(known.Modified) {
		return Version{}, false
	}
	v, err := ParseVersion(known.Version)
	return v, err == nil
}

func (m *versionCache) store(path string, v Version) {
	info, err := os.Stat(path)
	if m.file == "" || err != nil {
		return
	}
	if err := makeCacheDir(filepath.Dir(m.file)); err != nil {
		return
	}
	if m.Known == nil {
		m.Known = make(map[string]cachedVersion)
	}
	m.Known[path] = cachedVersion{Size: info.Size(), Modified: info.ModTime(), Version: v.String()}
	data, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return
	}
	_ = atomicfile.Write(m.file, data) // if the write fails, the next start only queries the binary again
}

// makeCacheDir creates dir, which is in the project's directory below the user's cache directory. It returns an error
// if the user's cache directory does not exist.
func makeCacheDir(dir string) error {
	if _, err := os.Stat(filepath.Dir(filepath.Dir(dir))); err != nil {
		return err
	}
	return os.MkdirAll(dir, 0o755)
}
