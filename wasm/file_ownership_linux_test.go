package wasm

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/owner"
)

// runAs runs a program as another user.
func runAs(o *owner.Owner, program string, args ...string) ([]byte, error) {
	cmd := exec.Command(program, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: o.UID, Gid: o.GID}}
	return cmd.CombinedOutput()
}

func TestEnvoyOfAnotherUserMayOnlyReadModules(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("requires root, which may change the owner of files")
	}
	root := t.TempDir()
	for _, dir := range []string{root, filepath.Dir(root)} {
		if err := os.Chmod(dir, 0o711); err != nil {
			t.Fatal(err)
		}
	}
	o := &owner.Owner{UID: 1337, GID: 1337}
	config := Config{Dir: filepath.Join(root, "not", "there"), Now: time.Now, MaxTotal: 1 << 20}
	keep := func(s *store, text string) string {
		t.Helper()
		f, err := s.temporary()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteString(text); err != nil {
			t.Fatal(err)
		}
		e, err := s.put(text, &fetched{file: f.Name(), sum: hexSum(text), size: int64(len(text))})
		if err != nil {
			t.Fatal(err)
		}
		return filepath.Join(config.Dir, e.path)
	}
	keep(newStore(&config), "of before")
	other := filepath.Join(config.Dir, "other")
	if err := os.Mkdir(other, 0o700); err != nil {
		t.Fatal(err)
	}

	config.Owner = o
	if err := os.Chmod(filepath.Join(root, "not"), 0o711); err != nil { // the store must not change the mode of this directory
		t.Fatal(err)
	}
	s := newStore(&config)
	if s.find("of before", "") == nil {
		t.Fatal("the cached module was removed")
	}
	config.Dir = filepath.Join(root, "neither", "there")
	apart := newStore(&config)
	fresh := keep(apart, "fresh")
	config.Dir = filepath.Join(root, "not", "there")
	for _, path := range []string{fresh, filepath.Join(config.Dir, s.find("of before", "").path)} {
		if out, err := runAs(o, "cat", path); err != nil {
			t.Errorf("Envoy's user cannot read a module: %v: %s", err, out)
		}
		for _, in := range []string{path, filepath.Dir(path), filepath.Dir(filepath.Dir(path))} {
			if out, err := runAs(o, "test", "-w", in); err == nil {
				t.Errorf("Envoy's user may write %s: %s", in, out)
			}
		}
	}
	if info, err := os.Stat(other); err != nil || info.Mode().Perm() != 0o700 || info.Sys().(*syscall.Stat_t).Uid != 0 {
		t.Errorf("the directory of another user changed: %v %v", info, err)
	}
}
