package controlplane

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/atomicfile"
)

// stateFileRest is the time from one try at writing a file to the next: what changes all the time is not written all the time.
const stateFileRest = time.Second

// stateFile is a file of the state directory which keeps, for the next start, what a part of the control plane knows. What
// cannot be written, as on a disk that is full, is told of once and tried until it can be. Its zero value is never written.
type stateFile struct {
	path    string
	lost    string // what it means that it cannot be written
	log     *slog.Logger
	changed chan struct{} // holds one
	failing bool          // the last try failed; for who writes
}

func newStateFile(path, lost string, log *slog.Logger) stateFile {
	return stateFile{path: path, lost: lost, log: log, changed: make(chan struct{}, 1)}
}

// note has what is known now be written. It does not block.
func (f *stateFile) note() {
	select {
	case f.changed <- struct{}{}:
	default:
	}
}

// run keeps the file as content gives it, until the context ends and then once more. Without any content there is no file.
func (f *stateFile) run(ctx context.Context, content func() ([]byte, error)) {
	for {
		select {
		case <-f.changed:
			f.write(content)
		case <-ctx.Done():
			select {
			case <-f.changed:
				f.write(content)
			default:
			}
			return
		}
		select {
		case <-ctx.Done():
		case <-time.After(stateFileRest):
		}
	}
}

func (f *stateFile) write(content func() ([]byte, error)) {
	data, err := content()
	switch {
	case err != nil:
	case len(data) > 0:
		err = atomicfile.Write(f.path, data)
	default:
		if err = os.Remove(f.path); errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
	}
	if err != nil {
		f.note()
		if !f.failing {
			f.log.Warn(f.lost, "file", f.path, "error", err)
		}
	}
	f.failing = err != nil
}
