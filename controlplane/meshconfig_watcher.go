package controlplane

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	meshconfig "istio.io/api/mesh/v1alpha1"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

const (
	// meshConfigInterval is the polling interval of the mesh configuration file. Polling detects a new version no
	// matter how the user replaces the file, and costs little, because the file is small.
	meshConfigInterval = 500 * time.Millisecond
	maxMeshConfig      = 1 << 20
)

// meshConfigWatcher watches a file with Istio's MeshConfig. If the content becomes invalid, the last valid content
// remains in effect.
type meshConfigWatcher struct {
	path string
	log  *slog.Logger

	mu      sync.Mutex
	text    []byte
	current *meshconfig.MeshConfig
	problem *config.Problem
}

// openMeshConfig reads the file path. It fails if the file is invalid, because there is no earlier valid content.
func openMeshConfig(path string, log *slog.Logger) (*meshConfigWatcher, error) {
	text, mesh, err := readMeshConfig(path)
	if err != nil {
		return nil, err
	}
	return &meshConfigWatcher{path: path, log: log, text: text, current: mesh}, nil
}

func readMeshConfig(path string) ([]byte, *meshconfig.MeshConfig, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, nil, fmt.Errorf("reading the mesh configuration: %w", err)
	}
	if info.Size() > maxMeshConfig {
		return nil, nil, fmt.Errorf("reading the mesh configuration %s: the file has %d bytes; at most %d are allowed: check the path", path, info.Size(), maxMeshConfig)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, nil, fmt.Errorf("reading the mesh configuration: %w", err)
	}
	mesh, problems := config.ReadMesh(path, text)
	if mesh == nil {
		return text, nil, fmt.Errorf("mesh configuration %w", meshConfigError{problems[0]})
	}
	return text, mesh, nil
}

// meshConfigError is the reason why a file was refused.
type meshConfigError struct{ config.Problem }

func (r meshConfigError) Error() string {
	return fmt.Sprintf("%s: %s; %s", r.At.File, r.Message, r.Remedy)
}

// Run polls the file until ctx ends. It calls changed when the file has new valid content.
func (f *meshConfigWatcher) Run(ctx context.Context, changed func()) {
	ticker := time.NewTicker(meshConfigInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			if f.reload() {
				changed()
			}
		}
	}
}

func (f *meshConfigWatcher) reload() (changed bool) {
	text, mesh, err := readMeshConfig(f.path)
	f.mu.Lock()
	defer f.mu.Unlock()
	if err == nil && bytes.Equal(text, f.text) {
		f.problem = nil
		return false
	}
	if err != nil {
		if f.problem == nil || f.problem.Message != err.Error() {
			f.log.Error("reading the mesh configuration failed; the last valid mesh configuration stays in effect", "error", err)
		}
		f.problem = &config.Problem{Code: config.MeshConfigRefused, Severity: config.Error, At: config.Position{File: f.path}, Message: err.Error()}
		if refused := (meshConfigError{}); errors.As(err, &refused) {
			f.problem.At = refused.At
		}
		f.problem.Remedy = "fix the file; the last valid configuration stays in effect"
		return false
	}
	f.text, f.current, f.problem = text, mesh, nil
	f.log.Info("applied the changed mesh configuration", "file", f.path)
	return true
}

// Mesh implements MeshSource.
func (f *meshConfigWatcher) Mesh() *meshconfig.MeshConfig {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.current
}

// Problems implements MeshSource.
func (f *meshConfigWatcher) Problems() []config.Problem {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, warnings := config.ReadMesh(f.path, f.text) // returns the warnings about the content in effect
	if f.problem != nil {
		warnings = append([]config.Problem{*f.problem}, warnings...)
	}
	return warnings
}
