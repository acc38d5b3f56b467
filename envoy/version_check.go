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
)

const maxVersionOutput = 4096

// checkBinary queries a binary's version and compares it with MinimumVersion.
func (s *search) checkBinary(ctx context.Context, path string, source Source) (Binary, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return Binary{}, fmt.Errorf("finding Envoy: %w", err)
	}
	b := Binary{Path: path, Source: source}
	if b.Version, err = s.readVersion(ctx, path); err != nil {
		if ctx.Err() != nil {
			return Binary{}, fmt.Errorf("querying the version of %s: %w", path, context.Cause(ctx))
		}
		var bad *NotEnvoyError
		if errors.As(err, &bad) {
			bad.Source = source
		}
		return Binary{}, err
	}
	if b.Version.Compare(MinimumVersion) < 0 {
		return Binary{}, &TooOldError{Binary: b, Minimum: MinimumVersion}
	}
	return b, nil
}

// readVersion returns the cached version of the file, or queries the binary. A query needs some 30 ms of CPU, too much
// for every start of an agent.
func (s *search) readVersion(ctx context.Context, path string) (Version, error) {
	if v, ok := s.cache.lookup(path); ok {
		return v, nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	v, err := queryVersion(ctx, path, s.Timeout)
	if err == nil {
		s.cache.store(path, v)
	}
	return v, err
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

// headBuffer stores the beginning of what is written to it.
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

// versionCache caches the versions of binaries until their files change. If the cache cannot be read, the binaries are
// queried.
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
	if m.Known == nil {
		m.Known = make(map[string]cachedVersion)
	}
	m.Known[path] = cachedVersion{Size: info.Size(), Modified: info.ModTime(), Version: v.String()}
	data, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return
	}
	_ = atomicfile.Write(m.file, data) // without the cache, the next start executes Envoy once more
}
