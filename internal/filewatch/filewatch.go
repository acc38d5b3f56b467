// Package filewatch wraps fsnotify's watcher. A method of fsnotify's watcher blocks while a reported error has not been
// read. The methods of this package's Watcher do not.
package filewatch

import "github.com/fsnotify/fsnotify"

// Watcher reports changes of files. Callers must read errors from Failures instead of Errors.
type Watcher struct {
	*fsnotify.Watcher
	// Failures stores one error. Further errors are dropped until it is read. The channel is never closed.
	Failures <-chan error
}

// New returns a watcher. Close releases it.
func New() (*Watcher, error) {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, err
	}
	return &Watcher{Watcher: w, Failures: drain(w.Errors)}, nil
}

// drain reads all errors immediately, and stores one. fsnotify locks the watcher while it reports an error, until the
// error is read. Without drain, a goroutine that calls another method of the watcher would wait for that lock, and
// could not read the error.
func drain(errors <-chan error) <-chan error {
	kept := make(chan error, 1)
	go func() {
		for err := range errors {
			select {
			case kept <- err:
			default:
			}
		}
	}()
	return kept
}
