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

// minWriteInterval is the minimum time between two writes of a stateFile.
const minWriteInterval = time.Second

// stateFile persists data in a file of the state directory. It logs a failed write, for example on a full disk, once,
// and retries it until it succeeds. The zero value has no path and writes nothing.
type stateFile struct {
	path           string
	failureMessage string // logged when a write fails; it describes the consequence
	log            *slog.Logger
	changed        chan struct{} // contains one element when the content has changed
	failing        bool          // the last write failed; only the method write uses it
}

func newStateFile(path, lost string, log *slog.Logger) stateFile {
	return stateFile{path: path, failureMessage: lost, log: log, changed: make(chan struct{}, 1)}
}

// schedule requests a write. It does not block.
func (f *stateFile) schedule() {
	select {
	case f.changed <- struct{}{}:
	default:
	}
}

// run writes the file after each change, until ctx ends. content returns the data to write. If a change is pending when
// ctx ends, run writes it before it returns. If the data is empty, run removes the file.
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
		case <-time.After(minWriteInterval):
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
		f.schedule()
		if !f.failing {
			f.log.Warn(f.failureMessage, "file", f.path, "error", err)
		}
	}
	f.failing = err != nil
}
