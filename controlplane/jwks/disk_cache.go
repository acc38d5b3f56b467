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

// readCache reads the cache file path. It returns an empty map if path is "" or the file does not exist. It validates
// each key set like a fetched one.
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
		return out, fmt.Errorf("decoding %s: %w", path, err)
	}
	for at, set := range sets {
		if keys, err := config.PublicKeys(set); err == nil {
			out[at] = string(keys)
		}
	}
	return out, nil
}

// saveCache writes the key sets to the cache file. It omits sets that would exceed maxFile: the Fetcher fetches them
// again after a restart.
func (f *Fetcher) saveCache() {
	if f.cfg.File == "" {
		return
	}
	f.mu.Lock()
	sets, size := map[string]json.RawMessage{}, 0
	// Write the sets in use first, because the file may reach its maximum size.
	for _, some := range []map[string]string{f.sets, f.cached} {
		for at, set := range some {
			// JSON escapes make a URL at most six times longer. The sum also includes punctuation.
			if size += 6*len(at) + len(set) + len(`"":,`); size < maxFile {
				sets[at] = json.RawMessage(set)
			}
		}
	}
	f.mu.Unlock()
	if err := writeCache(f.cfg.File, sets); err != nil {
		f.log.Warn("writing the keys of token issuers to the cache file failed; after a restart the control plane has to fetch them again", "file", f.cfg.File, "error", err)
	}
}

func writeCache(path string, sets map[string]json.RawMessage) error {
	data, err := json.Marshal(sets)
	if err != nil {
		return err
	}
	return atomicfile.Write(path, data)
}
