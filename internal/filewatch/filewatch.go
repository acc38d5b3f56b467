// Package filewatch wraps the watcher of fsnotify so that its methods do not block while the kernel reports errors.
package filewatch

import "github.com/fsnotify/fsnotify"

// Watcher reports changes of files. Read Failures in place of Errors.
type Watcher struct {
	*fsnotify.Watcher
	// Failures receives the first unread error; later errors are dropped until it is read. It is never closed.
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

// drain reads errors at once and stores one. A watcher whose error is not read holds the lock that its other methods
// need, and the goroutine that calls one of them cannot read the error.
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
