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
	// meshFileInterval is how often the mesh configuration's file is looked at. It changes seldom, and a look is one
	// small read, which sees through every way of replacing a file.
	meshFileInterval = 500 * time.Millisecond
	maxMeshFile      = 1 << 20
)

// meshFile follows a file of Istio's MeshConfig. While what the file says is refused, what it said before stays in force.
type meshFile struct {
	path string
	log  *slog.Logger

	mu      sync.Mutex
	text    []byte
	current *meshconfig.MeshConfig
	problem *config.Problem
}

// openMeshFile reads the file; one that cannot be used is an error now, when nothing is in force yet.
func openMeshFile(path string, log *slog.Logger) (*meshFile, error) {
	text, mesh, err := readMeshFile(path)
	if err != nil {
		return nil, err
	}
	return &meshFile{path: path, log: log, text: text, current: mesh}, nil
}

func readMeshFile(path string) ([]byte, *meshconfig.MeshConfig, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, nil, fmt.Errorf("mesh configuration: %w", err)
	}
	if info.Size() > maxMeshFile {
		return nil, nil, fmt.Errorf("mesh configuration %s: it has %d bytes, and %d are the most; is it the right file?", path, info.Size(), maxMeshFile)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, nil, fmt.Errorf("mesh configuration: %w", err)
	}
	mesh, problems := config.ReadMesh(path, text)
	if mesh == nil {
		return text, nil, fmt.Errorf("mesh configuration %w", meshRefusal{problems[0]})
	}
	return text, mesh, nil
}

// meshRefusal is a problem for which the file is refused.
type meshRefusal struct{ config.Problem }

func (r meshRefusal) Error() string {
	return fmt.Sprintf("%s: %s; %s", r.At.File, r.Message, r.Remedy)
}

// run calls changed after each change of what is in force.
func (f *meshFile) run(ctx context.Context, changed func()) {
	ticker := time.NewTicker(meshFileInterval)
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

func (f *meshFile) reload() (changed bool) {
	text, mesh, err := readMeshFile(f.path)
	f.mu.Lock()
	defer f.mu.Unlock()
	if err == nil && bytes.Equal(text, f.text) {
		f.problem = nil
		return false
	}
	if err != nil {
		if f.problem == nil || f.problem.Message != err.Error() {
			f.log.Error("the mesh configuration is refused; what it said before stays in force", "error", err)
		}
		f.problem = &config.Problem{Code: config.MeshConfigBad, Severity: config.Error, At: config.Position{File: f.path}, Message: err.Error()}
		if refused := (meshRefusal{}); errors.As(err, &refused) {
			f.problem.At = refused.At
		}
		f.problem.Remedy = "mend the file; what it said before stays in force"
		return false
	}
	f.text, f.current, f.problem = text, mesh, nil
	f.log.Info("the mesh configuration changed", "file", f.path)
	return true
}

func (f *meshFile) mesh() *meshconfig.MeshConfig {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.current
}

func (f *meshFile) problems() []config.Problem {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, warnings := config.ReadMesh(f.path, f.text) // it was read so when it came into force
	if f.problem != nil {
		warnings = append([]config.Problem{*f.problem}, warnings...)
	}
	return warnings
}
