// Package tombstone is what stays in a CNI plugin's place after it was uninstalled, while sandboxes name it: their end asks
// for it, and would fail without it for ever. It does nothing, says so in the way that runtimes understand, and removes
// itself with the last of them.
package tombstone

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// DefaultResults is where libcni keeps what it knows of sandboxes.
const DefaultResults = "/var/lib/cni/results"

// maxInput bounds the network configuration and the files of libcni's cache.
const maxInput = 4 << 20

// Call is one run of the plugin.
type Call struct {
	Command, ContainerID string // CNI_COMMAND and CNI_CONTAINERID
	In                   io.Reader
	Out                  io.Writer
	// Self is the tombstone's own file, and Results the folder of libcni's cache.
	Self, Results string
}

// Run answers one command and gives the exit code. The plugin is gone: a new sandbox gets what the plugins before it made.
func Run(c Call) int {
	text, err := io.ReadAll(io.LimitReader(c.In, maxInput))
	if err != nil {
		return fail(c.Out, err)
	}
	var config struct {
		CNIVersion string          `json:"cniVersion"`
		PrevResult json.RawMessage `json:"prevResult"`
	}
	if err := json.Unmarshal(text, &config); err != nil && c.Command != "VERSION" {
		return fail(c.Out, err)
	}
	if config.CNIVersion == "" {
		config.CNIVersion = "1.0.0"
	}
	var answer any
	switch c.Command {
	case "VERSION":
		answer = map[string]any{"cniVersion": config.CNIVersion, "supportedVersions": []string{"0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"}}
	case "ADD":
		answer = map[string]any{"cniVersion": config.CNIVersion}
		if len(config.PrevResult) > 0 && string(config.PrevResult) != "null" {
			answer = config.PrevResult
		}
	case "DEL", "GC":
		leave(c)
	}
	if answer == nil {
		return 0
	}
	if err := json.NewEncoder(c.Out).Encode(answer); err != nil {
		return 1
	}
	return 0
}

func fail(out io.Writer, err error) int {
	_ = json.NewEncoder(out).Encode(map[string]any{
		"cniVersion": "1.0.0", "code": 6, "msg": "the network configuration is not what it should be", "details": err.Error(),
	})
	return 1
}

// leave removes the tombstone when no sandbox but the one that ends now names the plugin.
func leave(c Call) {
	named, err := References(c.Results, filepath.Base(c.Self), c.ContainerID)
	if err == nil && named == 0 {
		_ = os.Remove(c.Self) // at worst it stays, and does no harm
	}
}

// References counts the sandboxes, other than one, that libcni remembers to have been made with a plugin: whose end asks
// for it.
func References(results, plugin, but string) (int, error) {
	entries, err := os.ReadDir(results)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("what libcni remembers of sandboxes: %w", err)
	}
	count := 0
	for _, e := range entries {
		if !e.Type().IsRegular() {
			continue
		}
		sandbox, names, err := reference(filepath.Join(results, e.Name()), plugin)
		if errors.Is(err, fs.ErrNotExist) {
			continue // it has ended meanwhile
		}
		if err != nil {
			return count, err
		}
		if names && (but == "" || sandbox != but) {
			count++
		}
	}
	return count, nil
}

// reference says whether a file of libcni's cache, which holds the configuration that a sandbox was made with, names the
// plugin.
func reference(path, plugin string) (sandbox string, names bool, err error) {
	f, err := os.Open(path)
	if err != nil {
		return "", false, err
	}
	defer func() { _ = f.Close() }()
	text, err := io.ReadAll(io.LimitReader(f, maxInput))
	if err != nil {
		return "", false, err
	}
	var cached struct {
		ContainerID string `json:"containerId"`
		Config      []byte `json:"config"`
	}
	if json.Unmarshal(text, &cached) != nil {
		return "", false, nil // not of libcni's
	}
	return cached.ContainerID, strings.Contains(string(cached.Config), `"`+plugin+`"`), nil
}
