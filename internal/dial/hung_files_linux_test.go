package dial

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// Opening a pipe without a writer blocks, like a file on a file system that does not respond.
func TestHungFilesDoNotBlockConnections(t *testing.T) {
	dir := t.TempDir()
	pipe := func(name string) string {
		file := filepath.Join(dir, name, "file")
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := syscall.Mkfifo(file, 0o600); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { // unblock the reader, so that its goroutine exits
			testenv.Eventually(t, "the pipe is read", func() error {
				w, err := os.OpenFile(file, os.O_WRONLY|syscall.O_NONBLOCK, 0)
				if err == nil {
					err = w.Close()
				}
				return err
			})
		})
		return file
	}
	token, cert, root := pipe("token"), pipe("cert"), pipe("root")
	server := Server{TokenFile: token, TLS: TLS{CertFile: cert, KeyFile: cert, RootFile: root}}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 3 {
			if _, err := server.Header(); err == nil || !strings.Contains(err.Error(), filepath.Dir(token)+": the file system does not respond") {
				t.Errorf("token: %v", err)
			}
			if _, err := server.TLS.Config("host"); err == nil || !strings.Contains(err.Error(), filepath.Dir(root)+": the file system does not respond") {
				t.Errorf("roots: %v", err)
			}
			for _, c := range server.Credentials() {
				if c.Err == nil || !strings.Contains(c.Err.Error(), "the file system does not respond") {
					t.Errorf("%s: %v", c.Kind, c.Err)
				}
			}
		}
	}()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	select {
	case <-done:
	case <-ctx.Done():
		t.Fatal("connecting is blocked")
	}
}
