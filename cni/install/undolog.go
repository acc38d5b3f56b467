package install

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"path/filepath"
)

// undoLogName is in the folder of the CNI configuration, where it outlives reboots as the configuration does. Runtimes
// read no file without an extension of theirs.
const undoLogName = ".pilotfish-cni-undo"

// undoLog says, on the disk, what the configuration was before the plugin came into it. An entry is written before its
// change: one whose change never happened does no harm, since nothing is taken back of a file that is not what was written.
type undoLog struct {
	Entries []undoEntry `json:"entries"`
}

type undoEntry struct {
	File  string `json:"file"`            // relative to the folder
	Wrote string `json:"wrote,omitempty"` // SHA-256 of what we made of it; "" when it was taken away
	// Was is what it was; nil when it was not there.
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
		return nil, fmt.Errorf("the undo log %s cannot be read (remove it to go on without it): %w", path, err)
	}
	for _, e := range log.Entries {
		if !filepath.IsLocal(e.File) {
			return nil, fmt.Errorf("the undo log %s names %q, which is outside of its folder", path, e.File)
		}
	}
	return &log, nil
}

// wrote says whether a file is as the log says that we left it.
func (l *undoLog) wrote(dir, path string, is file) bool {
	for _, e := range l.Entries {
		if filepath.Join(dir, e.File) == path {
			return is.exists == (e.Wrote != "") && (!is.exists || e.Wrote == digest(is.content))
		}
	}
	return false
}

// note remembers what a file was before the plugin came into it. A file that has the plugin already, from an earlier
// install, keeps what is remembered of it.
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
			e.Was, e.Mode = old.Was, old.Mode // it was ours then, too
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
