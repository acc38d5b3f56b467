package xtables

import (
	"os"
	"path/filepath"
	"testing"
)

func TestOutputIsReadAfterTheProgramExits(t *testing.T) {
	t.Parallel()
	wrapper := filepath.Join(t.TempDir(), "iptables-restore")
	if err := os.WriteFile(wrapper, []byte("#!/bin/sh\nsleep 1 &\necho done\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	// A child holds the output open for a second here; a busy machine may need that long to schedule the reader.
	if out, err := (namespace{}).run(t.Context(), "", wrapper); err != nil || out != "done\n" {
		t.Errorf("%q %v", out, err)
	}
}
