package install

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"path/filepath"
)

// undoLogName is a file in the CNI configuration directory, so that it persists across reboots as the configuration
// does. Runtimes ignore files without a known extension.
const undoLogName = ".pilotfish-cni-undo"

// undoLog stores the state of the configuration before the plugin was added. An entry is written before its change. An
// entry whose change did not happen is harmless, since only files with the recorded hash are restored.
type undoLog struct {
	Entries []undoEntry `json:"entries"`
}

type undoEntry struct {
	File  string `json:"file"`            // relative to the configuration directory
	Wrote string `json:"wrote,omitempty"` // SHA-256 of the content that the installer wrote; "" if it removed the file
	// Was is the original content; nil if the file did not exist.
	Was  []byte `json:"was,omitempty"`
	Mode uint32 `json:"mode,omitempty"`
}

func digest(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}

func readUndoLog(dir string) (*undoLog, error) {
	path := filepath.Join(dir, undoLogName)
	f, err := read(path, 4*maxConf)
	if err != nil || !f.exists {
		return &undoLog{}, err
	}
	var log undoLog
	if err := json.Unmarshal(f.content, &log); err != nil {
		return nil, fmt.Errorf("the undo log %s cannot be read (remove it to continue without it): %w", path, err)
	}
	for _, e := range log.Entries {
		if !filepath.IsLocal(e.File) {
			return nil, fmt.Errorf("the undo log %s lists %q, which is outside of its directory", path, e.File)
		}
	}
	return &log, nil
}

// wrote reports whether a file is in the state that the log recorded.
func (l *undoLog) wrote(dir, path string, is file) bool {
	for _, e := range l.Entries {
		if filepath.Join(dir, e.File) == path {
			return is.exists == (e.Wrote != "") && (!is.exists || e.Wrote == digest(is.content))
		}
	}
	return false
}

// note records the state of a file before the plugin was added. If the file already contains the plugin from an earlier
// install, the earlier record is retained.
func (l *undoLog) note(dir, path string, was file, wrote []byte) error {
	name, err := filepath.Rel(dir, path)
	if err != nil {
		return err
	}
	e := undoEntry{File: name}
	if wrote != nil {
		e.Wrote = digest(wrote)
	}
	if was.exists {
		e.Was, e.Mode = was.content, uint32(was.mode)
	}
	for i := range l.Entries {
		old := &l.Entries[i]
		if old.File != name {
			continue
		}
		if was.exists && old.Wrote == digest(was.content) {
			e.Was, e.Mode = old.Was, old.Mode // the previous state contained the plugin, too
		}
		*old = e
		return nil
	}
	l.Entries = append(l.Entries, e)
	return nil
}

func (l *undoLog) save(d *disk, dir string) error {
	text, err := json.Marshal(l)
	if err != nil {
		return err
	}
	path := filepath.Join(dir, undoLogName)
	if now, err := read(path, 4*maxConf); err == nil && string(now.content) == string(text) {
		return nil
	}
	return d.write(path, text, 0o600)
}
