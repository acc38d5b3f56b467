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

// keep writes all keys, for the next start. What cannot be kept is fetched then.
func (f *Fetcher) keep() {
	if f.cfg.File == "" {
		return
	}
	sets := map[string]json.RawMessage{}
	for at, set := range f.Sets() {
		sets[at] = json.RawMessage(set)
	}
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
