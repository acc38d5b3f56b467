package install

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"path/filepath"
)

// undoLogName is the name of the undo log. It is in the CNI configuration directory, and therefore survives reboots
// like the configuration. Container runtimes ignore files without the extension of a CNI configuration.
const undoLogName = ".pilotfish-cni-undo"

// undoLog stores the original state of each CNI configuration file that the installer changes. The installer writes an
// entry before it changes the file. If the change then fails, the entry has no effect, because Uninstall restores only
// files whose content has the hash in the entry.
type undoLog struct {
	Entries []undoEntry `json:"entries"`
}

type undoEntry struct {
	File  string `json:"file"`            // relative to the configuration directory
	Wrote string `json:"wrote,omitempty"` // SHA-256 of the content that the installer wrote; "" if it removed the file
	// Was is the original content of the file; nil if it did not exist.
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
		return nil, fmt.Errorf("the undo log %s is invalid (remove it to continue without it): %w", path, err)
	}
	for _, e := range log.Entries {
		if !filepath.IsLocal(e.File) {
			return nil, fmt.Errorf("the undo log %s lists %q, which is outside the CNI configuration directory (remove the undo log to continue without it)", path, e.File)
		}
	}
	return &log, nil
}

// wrote reports whether a file's current state is the one that the installer wrote, according to the log.
func (l *undoLog) wrote(dir, path string, is file) bool {
	for _, e := range l.Entries {
		if filepath.Join(dir, e.File) == path {
			return is.exists == (e.Wrote != "") && (!is.exists || e.Wrote == digest(is.content))
		}
	}
	return false
}

// note records a file's original state was and its new content wrote. If was is what the installer wrote earlier, it is
// not the original state. note then retains the original state in the earlier entry.
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
			e.Was, e.Mode = old.Was, old.Mode // was contains the plugin already, so it is not the original state
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
