// Package tombstone replaces the uninstalled CNI plugin while sandboxes still reference it, because their DEL would
// otherwise fail forever. Its commands have no effect and succeed. It removes itself with the last of these sandboxes.
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

// DefaultResults is the directory of libcni's result cache.
const DefaultResults = "/var/lib/cni/results"

// maxInput limits the network configuration and the files of libcni's cache, in bytes.
const maxInput = 4 << 20

// Call contains the parameters of one run of the plugin.
type Call struct {
	Command, ContainerID string // CNI_COMMAND and CNI_CONTAINERID
	In                   io.Reader
	Out                  io.Writer
	// Self is the tombstone's executable. Results is the directory of libcni's cache.
	Self, Results string
}

// Run runs one command and returns the exit code. For ADD it returns the result of the previous plugins unchanged.
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
		removeIfUnused(c)
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
		"cniVersion": "1.0.0", "code": 6, "msg": "the network configuration is invalid", "details": err.Error(),
	})
	return 1
}

// removeIfUnused removes the tombstone if no sandbox except the one that ends references the plugin.
func removeIfUnused(c Call) {
	named, err := CountReferences(c.Results, filepath.Base(c.Self), c.ContainerID)
	if err == nil && named == 0 {
		_ = os.Remove(c.Self) // on failure the file remains, which is harmless
	}
}

// CountReferences returns the number of sandboxes, except one, in libcni's cache that reference a plugin. Their DEL runs it.
func CountReferences(results, plugin, but string) (int, error) {
	entries, err := os.ReadDir(results)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("reading libcni's result cache: %w", err)
	}
	count := 0
	for _, e := range entries {
		if !e.Type().IsRegular() {
			continue
		}
		sandbox, names, err := readReference(filepath.Join(results, e.Name()), plugin)
		if errors.Is(err, fs.ErrNotExist) {
			continue // the sandbox has ended meanwhile
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

// readReference reports whether a file of libcni's cache, which contains the configuration of a sandbox, references the
// plugin.
func readReference(path, plugin string) (sandbox string, names bool, err error) {
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
		return "", false, nil // not a file of libcni
	}
	return cached.ContainerID, strings.Contains(string(cached.Config), `"`+plugin+`"`), nil
}
