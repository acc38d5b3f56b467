package umask

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

func TestOnlyTheOwnerIsSpared(t *testing.T) {
	for _, test := range []struct {
		mask int
		made os.FileMode
	}{
		{0o777, 0o700}, {0o727, 0o750}, {0o300, 0o777}, {0o077, 0o700}, {0o022, 0o755}, {0, 0o777},
	} {
		before := syscall.Umask(test.mask)
		ClearOwnerBits()
		dir := filepath.Join(t.TempDir(), "made")
		err := os.Mkdir(dir, 0o777)
		syscall.Umask(before)
		if err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(dir)
		if err != nil {
			t.Fatal(err)
		}
		if got := info.Mode().Perm(); got != test.made {
			t.Errorf("with the umask %04o, the file has mode %04o, want %04o", test.mask, got, test.made)
		}
	}
}
