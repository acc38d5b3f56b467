package repair

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"

	"github.com/pilotfish-mesh/pilotfish/internal/atomicfile"
	"github.com/pilotfish-mesh/pilotfish/internal/regularfile"
)

// maxMemory is the maximum size of the history file, in bytes. It is sufficient for thousands of sandboxes.
const maxMemory = 1 << 20

// history is the set of sandboxes on which the repairer has acted. It is stored in a file if path is not "".
type history struct {
	path  string
	acted map[string]bool
}

// openHistory reads the file. If it cannot be read, openHistory returns an empty history and an error.
func openHistory(path string) (*history, error) {
	m := &history{path: path, acted: map[string]bool{}}
	if path == "" {
		return m, nil
	}
	text, err := regularfile.Read(path, maxMemory)
	if errors.Is(err, fs.ErrNotExist) {
		return m, nil
	}
	if err != nil {
		return m, err
	}
	var keys []string
	if err := json.Unmarshal(text, &keys); err != nil {
		return m, fmt.Errorf("%s: %w", path, err)
	}
	for _, key := range keys {
		m.acted[key] = true
	}
	return m, nil
}

func (m *history) has(key string) bool { return m.acted[key] }

func (m *history) add(key string) error {
	m.acted[key] = true
	return m.save()
}

func (m *history) drop(key string) {
	delete(m.acted, key)
	_ = m.save() // if this fails, the file lists a repair that did not happen
}

// retain removes the sandboxes whose pods are not in live, a set of pod UIDs.
func (m *history) retain(live map[string]bool) {
	before := len(m.acted)
	maps.DeleteFunc(m.acted, func(key string, _ bool) bool { return !live[uidOf(key)] })
	if len(m.acted) != before {
		_ = m.save()
	}
}

func (m *history) save() error {
	if m.path == "" {
		return nil
	}
	text, err := json.Marshal(slices.Sorted(maps.Keys(m.acted)))
	if err != nil {
		return err
	}
	if now, err := os.ReadFile(m.path); err == nil && bytes.Equal(now, text) {
		return nil
	}
	return atomicfile.Write(m.path, text)
}
