// Package filewatch is fsnotify's watcher, made safe to call while it fails.
package filewatch

import "github.com/fsnotify/fsnotify"

// Watcher tells of changes of files. Its Errors are taken already; Failures are to be read in their place.
type Watcher struct {
	*fsnotify.Watcher
	// Failures keeps the first of the errors that were not read yet; later ones say no more. It is not closed.
	Failures <-chan error
}

// New makes a watcher. Close ends all that it began.
func New() (*Watcher, error) {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, err
	}
	return &Watcher{Watcher: w, Failures: drain(w.Errors)}, nil
}

// drain takes errors off at once and keeps one: a watcher that waits for its error to be read holds the lock that its other
// methods need, and whoever calls one of them is not there to read.
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
