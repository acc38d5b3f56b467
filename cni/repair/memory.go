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

	"github.com/pilotfish-mesh/pilotfish/internal/plainfile"
)

// maxMemory bounds the file: thousands of sandboxes.
const maxMemory = 1 << 20

// memory is the sandboxes that were acted on. It outlives the process where it has a file.
type memory struct {
	path  string
	acted map[string]bool
}

// openMemory reads it; what cannot be read is forgotten, and said.
func openMemory(path string) (*memory, error) {
	m := &memory{path: path, acted: map[string]bool{}}
	if path == "" {
		return m, nil
	}
	text, err := plainfile.Read(path, maxMemory)
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

func (m *memory) has(key string) bool { return m.acted[key] }

func (m *memory) add(key string) error {
	m.acted[key] = true
	return m.save()
}

func (m *memory) drop(key string) {
	delete(m.acted, key)
	_ = m.save() // at worst it is remembered that something was done which was not
}

// keep forgets the sandboxes of pods that are gone.
func (m *memory) keep(live map[string]bool) {
	before := len(m.acted)
	maps.DeleteFunc(m.acted, func(key string, _ bool) bool { return !live[uidOf(key)] })
	if len(m.acted) != before {
		_ = m.save()
	}
}

func (m *memory) save() error {
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
	temp := m.path + ".new"
	if err := os.WriteFile(temp, text, 0o600); err != nil {
		return err
	}
	return os.Rename(temp, m.path)
}
