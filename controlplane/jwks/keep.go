package jwks

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/internal/atomicfile"
)

// largestFile bounds what is read of what was kept.
const largestFile = 16 << 20

// readKept reads what was kept; nothing when there is no file. Each set is checked as if it were fetched.
func readKept(path string) (map[string]string, error) {
	out := map[string]string{}
	if path == "" {
		return out, nil
	}
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return out, nil
	}
	if err != nil {
		return out, err
	}
	defer func() { _ = f.Close() }()
	sets := map[string]json.RawMessage{}
	if err := json.NewDecoder(io.LimitReader(f, largestFile)).Decode(&sets); err != nil {
		return out, fmt.Errorf("%s: %w", path, err)
	}
	for at, set := range sets {
		if keys, err := config.PublicKeys(set); err == nil {
			out[at] = string(keys)
		}
	}
	return out, nil
}

// keep writes all keys, as far as the next start would read them. What cannot be kept is fetched then.
func (f *Fetcher) keep() {
	if f.cfg.File == "" {
		return
	}
	f.mu.Lock()
	sets, size := map[string]json.RawMessage{}, 0
	for _, some := range []map[string]string{f.sets, f.kept} { // those in use first, should it be too much
		for at, set := range some {
			// An address in JSON is at most six times as long, and the punctuation is counted.
			if size += 6*len(at) + len(set) + len(`"":,`); size < largestFile {
				sets[at] = json.RawMessage(set)
			}
		}
	}
	f.mu.Unlock()
	if err := writeKept(f.cfg.File, sets); err != nil {
		f.log.Warn("keys of token issuers cannot be kept for the next start", "file", f.cfg.File, "error", err)
	}
}

func writeKept(path string, sets map[string]json.RawMessage) error {
	data, err := json.Marshal(sets)
	if err != nil {
		return err
	}
	return atomicfile.Write(path, data)
}
