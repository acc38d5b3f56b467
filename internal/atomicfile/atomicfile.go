// Package atomicfile replaces files whole.
package atomicfile

import (
	"errors"
	"os"
	"path/filepath"
)

// Write puts data into the file, readable to its owner only (0600). A reader, and a crash, finds what was there before or
// all of the new, and where it fails nothing is left beside. The errors are those of package os, and name a path.
func Write(file string, data []byte) error {
	draft, err := os.CreateTemp(filepath.Dir(file), "."+filepath.Base(file)+"-*") // mode 0600
	if err != nil {
		return err
	}
	_, err = draft.Write(data)
	if err = errors.Join(err, draft.Sync(), draft.Close()); err == nil {
		err = os.Rename(draft.Name(), file)
	}
	if err != nil {
		_ = os.Remove(draft.Name())
	}
	return err
}
