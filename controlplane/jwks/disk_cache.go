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

// maxFile limits the size of the cache file, in bytes.
const maxFile = 16 << 20

// readCache reads the cache file, or nothing if there is none. It validates each set like a fetched one.
func readCache(path string) (map[string]string, error) {
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
	if err := json.NewDecoder(io.LimitReader(f, maxFile)).Decode(&sets); err != nil {
		return out, fmt.Errorf("%s: %w", path, err)
	}
	for at, set := range sets {
		if keys, err := config.PublicKeys(set); err == nil {
			out[at] = string(keys)
		}
	}
	return out, nil
}

// saveCache writes all keys, up to maxFile. Keys that do not fit are fetched again after a restart.
func (f *Fetcher) saveCache() {
	if f.cfg.File == "" {
		return
	}
	f.mu.Lock()
	sets, size := map[string]json.RawMessage{}, 0
	for _, some := range []map[string]string{f.sets, f.cached} { // used sets first, in case the limit is reached
		for at, set := range some {
			// JSON escapes make an address at most six times longer; punctuation is included.
			if size += 6*len(at) + len(set) + len(`"":,`); size < maxFile {
				sets[at] = json.RawMessage(set)
			}
		}
	}
	f.mu.Unlock()
	if err := writeCache(f.cfg.File, sets); err != nil {
		f.log.Warn("keys of token issuers cannot be saved for the next start", "file", f.cfg.File, "error", err)
	}
}

func writeCache(path string, sets map[string]json.RawMessage) error {
	data, err := json.Marshal(sets)
	if err != nil {
		return err
	}
	return atomicfile.Write(path, data)
}
