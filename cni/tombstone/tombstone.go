// Package tombstone implements the program that replaces the CNI plugin's binary after uninstallation. Existing
// sandboxes still reference the plugin, and without a binary their DEL would fail. The commands of the tombstone
// succeed and change no rules. When the last of these sandboxes is deleted, the tombstone removes its own binary.
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

// DefaultResults is the directory of libcni's result cache, which contains a file per sandbox and network.
const DefaultResults = "/var/lib/cni/results"

// maxInput limits the network configuration and the files of libcni's cache, in bytes.
const maxInput = 4 << 20

// Call contains the parameters of one run of the plugin.
type Call struct {
	Command, ContainerID string // CNI_COMMAND and CNI_CONTAINERID
	In                   io.Reader
	Out                  io.Writer
	// Self is the path of the tombstone's binary. Results is the directory of libcni's result cache.
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
	var response any
	switch c.Command {
	case "VERSION":
		response = map[string]any{"cniVersion": config.CNIVersion, "supportedVersions": []string{"0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"}}
	case "ADD":
		response = map[string]any{"cniVersion": config.CNIVersion}
		if len(config.PrevResult) > 0 && string(config.PrevResult) != "null" {
			response = config.PrevResult
		}
	case "DEL", "GC":
		removeIfUnused(c)
	}
	if response == nil {
		return 0
	}
	if err := json.NewEncoder(c.Out).Encode(response); err != nil {
		return 1
	}
	return 0
}

// fail prints a CNI error and returns the exit code 1.
func fail(out io.Writer, err error) int {
	_ = json.NewEncoder(out).Encode(map[string]any{
		"cniVersion": "1.0.0", "code": 6, "msg": "the network configuration is invalid", "details": err.Error(),
	})
	return 1
}

// removeIfUnused removes the tombstone's binary if only the sandbox of the current DEL still references the plugin.
func removeIfUnused(c Call) {
	count, err := CountReferences(c.Results, filepath.Base(c.Self), c.ContainerID)
	if err == nil && count == 0 {
		_ = os.Remove(c.Self) // if this fails, the remaining binary is harmless
	}
}

// CountReferences returns the number of entries in libcni's result cache whose sandbox references the plugin. For
// these, the runtime will run the plugin for DEL. It does not count the sandbox whose container ID is excluded.
func CountReferences(results, plugin, excluded string) (int, error) {
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
		containerID, references, err := readReference(filepath.Join(results, e.Name()), plugin)
		if errors.Is(err, fs.ErrNotExist) {
			continue // the sandbox has been deleted since the directory was read
		}
		if err != nil {
			return count, err
		}
		if references && (excluded == "" || containerID != excluded) {
			count++
		}
	}
	return count, nil
}

// readReference returns the container ID in a file of libcni's result cache, and whether the sandbox's network
// configuration in the file references the plugin.
func readReference(path, plugin string) (containerID string, references bool, err error) {
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
		return "", false, nil // not a file that libcni wrote
	}
	return cached.ContainerID, strings.Contains(string(cached.Config), `"`+plugin+`"`), nil
}
