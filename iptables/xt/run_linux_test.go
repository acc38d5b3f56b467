package xt

import (
	"os"
	"path/filepath"
	"testing"
)

func TestAProgramThatEndedWellMayHaveItsOutputReadLate(t *testing.T) {
	t.Parallel()
	wrapper := filepath.Join(t.TempDir(), "iptables-restore")
	if err := os.WriteFile(wrapper, []byte("#!/bin/sh\nsleep 1 &\necho done\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	// What holds the output open for a second here is a child; on a busy machine it is nobody's turn to read it.
	if out, err := (namespace{}).run(t.Context(), "", wrapper); err != nil || out != "done\n" {
		t.Errorf("%q %v", out, err)
	}
}
