package regularfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestOnlyFilesOfTheSizeAreRead(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	if err := errors.Join(
		os.WriteFile(at("file"), []byte("1234"), 0o600),
		os.WriteFile(at("large"), []byte("12345"), 0o600),
		os.Symlink("file", at("link")),
		syscall.Mkfifo(at("pipe"), 0o600),
		os.Mkdir(at("folder"), 0o700),
	); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"file": "", "link": "", "large": "larger than 4 bytes", "pipe": "not a regular file", "folder": "not a regular file",
	} {
		text, err := Read(at(name), 4)
		switch {
		case want == "" && (err != nil || string(text) != "1234"):
			t.Errorf("%s: %q, %v", name, text, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%s: %q, %v; want %q", name, text, err, want)
		}
	}
	if _, err := Read(at("none"), 4); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}
