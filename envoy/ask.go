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
)

const mostVersionOutput = 4096

// check asks a binary for its version and compares.
func (s *search) check(ctx context.Context, path string, source Source) (Binary, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return Binary{}, fmt.Errorf("finding Envoy: %w", err)
	}
	b := Binary{Path: path, Source: source}
	if b.Version, err = s.version(ctx, path); err != nil {
		if ctx.Err() != nil {
			return Binary{}, fmt.Errorf("asking %s for its version: %w", path, context.Cause(ctx))
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

// version takes the remembered answer of this very file, or asks it: that takes Envoy some 30 ms of CPU, too much for
// every start of an agent.
func (s *search) version(ctx context.Context, path string) (Version, error) {
	if v, ok := s.known.recall(path); ok {
		return v, nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	v, err := askVersion(ctx, path, s.Timeout)
	if err == nil {
		s.known.remember(path, v)
	}
	return v, err
}

func askVersion(ctx context.Context, path string, timeout time.Duration) (Version, error) {
	out := &headBuffer{limit: mostVersionOutput}
	cmd := exec.CommandContext(ctx, path, "--version")
	cmd.Stdout, cmd.Stderr = out, out
	ownGroup(cmd)
	cmd.Cancel = func() error { return killGroup(cmd.Process.Pid) }
	cmd.WaitDelay = drainLimit
	err := cmd.Run()
	if ctx.Err() != nil {
		err = fmt.Errorf("it did not tell its version within %v", timeout)
	}
	if err != nil {
		return Version{}, &NotEnvoyError{Path: path, Output: out.firstLine(), Err: fmt.Errorf("asking for its version: %w", err)}
	}
	v, err := parseVersionOutput(out.String())
	if err != nil {
		return Version{}, &NotEnvoyError{Path: path, Output: out.firstLine(), Err: err}
	}
	return v, nil
}

// headBuffer keeps the beginning of what is written to it.
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

// memory remembers what binaries said of their version, as long as they do not change. It is only ever a short cut:
// whatever is wrong with it, the binary is asked.
type memory struct {
	file  string
	Known map[string]remembered `json:"known"`
}

type remembered struct {
	Size     int64     `json:"size"`
	Modified time.Time `json:"modified"`
	Version  string    `json:"version"`
}

func openMemory(dir string) *memory {
	m := &memory{}
	if dir == "" {
		return m
	}
	m.file = filepath.Join(dir, "versions.json")
	if data, err := os.ReadFile(m.file); err == nil {
		_ = json.Unmarshal(data, m)
	}
	return m
}

func (m *memory) recall(path string) (Version, bool) {
	known, ok := m.Known[path]
	info, err := os.Stat(path)
	if !ok || err != nil || info.Size() != known.Size || !info.ModTime().Equal(known.Modified) {
		return Version{}, false
	}
	v, err := ParseVersion(known.Version)
	return v, err == nil
}

func (m *memory) remember(path string, v Version) {
	info, err := os.Stat(path)
	if m.file == "" || err != nil {
		return
	}
	if m.Known == nil {
		m.Known = make(map[string]remembered)
	}
	m.Known[path] = remembered{Size: info.Size(), Modified: info.ModTime(), Version: v.String()}
	data, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return
	}
	temp, err := os.CreateTemp(filepath.Dir(m.file), ".versions-*")
	if err != nil {
		return
	}
	_, err = temp.Write(data)
	if err = errors.Join(err, temp.Close()); err == nil {
		err = os.Rename(temp.Name(), m.file)
	}
	if err != nil {
		_ = os.Remove(temp.Name())
	}
}
