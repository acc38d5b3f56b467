package filewatch

import (
	"errors"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestUnreadErrorsDoNotBlock(t *testing.T) {
	errs := make(chan error)
	kept := drain(errs)
	first := errors.New("first")
	errs <- first
	for range 10 { // each error would block until it is read
		errs <- errors.New("later")
	}
	close(errs)
	if err := <-kept; err != first {
		t.Errorf("the stored error is %v", err)
	}
}

func TestWatcherEndsWhatItBegan(t *testing.T) {
	w, err := New()
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Add(t.TempDir()); err != nil {
		t.Error(err)
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
}
