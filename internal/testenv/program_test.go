package testenv

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

func TestProgramCanBeRunAtOnceWhateverElseIsStarted(t *testing.T) {
	var workers sync.WaitGroup
	for w := range 8 {
		workers.Go(func() {
			for n := range 40 {
				path := filepath.Join(t.TempDir(), fmt.Sprintf("%d-%d", w, n))
				Program(t, path, []byte("#!/bin/sh\nexit 0\n"))
				if err := exec.Command(path).Run(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	workers.Wait()
}
