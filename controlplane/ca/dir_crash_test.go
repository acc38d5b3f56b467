package ca

import (
	"crypto/x509"
	"encoding/pem"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// copyState returns a copy of an authority's state directory.
func copyState(t *testing.T, from string) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), "state")
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	err := filepath.WalkDir(to, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		mode := fs.FileMode(0o600)
		if d.IsDir() {
			mode = 0o700
		}
		return os.Chmod(path, mode)
	})
	if err != nil {
		t.Fatal(err)
	}
	return to
}

// mixedState simulates a process that was killed during a step. It returns a copy of the state after the step, in
// which the files in asBefore have their content from before the step, and the files in missing do not exist.
func mixedState(t *testing.T, before, after string, asBefore, missing []string) string {
	t.Helper()
	dir := copyState(t, after)
	for _, name := range asBefore {
		path := filepath.Join(dir, authorityDir, name)
		_ = os.Remove(path)
		data, err := os.ReadFile(filepath.Join(before, authorityDir, name))
		if os.IsNotExist(err) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := writeFile(path, data); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range missing {
		if err := os.Remove(filepath.Join(dir, authorityDir, name)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func rootsIn(t *testing.T, text []byte) (out []*x509.Certificate) {
	t.Helper()
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		root, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, root)
	}
	return out
}

// A process may be killed between any two file operations of a step. Afterwards the authority must still work, and the
// next call must continue the rotation.
func TestKilledRotationContinues(t *testing.T) {
	dirs := []string{filepath.Join(t.TempDir(), "state")} // the state before any step, and after each step
	load(t, dirs[0], Options{})
	for _, want := range []RotationStep{Announce, Activate, Retire} {
		dir := copyState(t, dirs[len(dirs)-1])
		if took, err := load(t, dir, Options{}).Rotate(true); err != nil || took != want {
			t.Fatalf("%s: %s, %v", want, took, err)
		}
		dirs = append(dirs, dir)
	}
	first, draft := []string{rootCertFile, rootKeyFile}, "."+generationsFile
	for name, test := range map[string]struct {
		dir  string
		next RotationStep // the step that is due in that state
	}{
		"announcing: only an empty directory exists":             {mixedState(t, dirs[0], dirs[1], []string{generationsFile}, []string{"root-1/" + rootCertFile, "root-1/" + rootKeyFile}), Announce},
		"announcing: only the certificate is written":            {mixedState(t, dirs[0], dirs[1], []string{generationsFile}, []string{"root-1/" + rootKeyFile}), Announce},
		"announcing: the root is written, the state file is not": {mixedState(t, dirs[0], dirs[1], []string{generationsFile}, nil), Announce},
		"announcing: a draft of the state file remains":          {withDraft(t, mixedState(t, dirs[0], dirs[1], []string{generationsFile}, nil), draft), Announce},
		"activating: a draft of the state file remains":          {withDraft(t, mixedState(t, dirs[1], dirs[2], []string{generationsFile}, nil), draft), Activate},
		"retiring: a draft of the state file remains":            {withDraft(t, mixedState(t, dirs[2], dirs[3], append(first, generationsFile), nil), draft), Retire},
		"retiring: the old root remains":                         {mixedState(t, dirs[2], dirs[3], first, nil), Announce},
		"retiring: the old root's certificate remains":           {mixedState(t, dirs[2], dirs[3], first[:1], nil), Announce},
	} {
		t.Run(name, func(t *testing.T) {
			a := load(t, test.dir, Options{})
			r, err := a.Rotation()
			if err != nil || r.Next != test.next {
				t.Fatalf("the next step is %q (%v), want %q", r.Next, err, test.next)
			}
			for took := RotationStep(""); took != Retire; {
				if took, err = a.Rotate(true); err != nil {
					t.Fatal(err)
				}
			}
			again := load(t, test.dir, Options{})
			if roots := rootsIn(t, again.RootPEM()); len(roots) != 1 || !roots[0].Equal(again.signing().issuer.root) {
				t.Errorf("%d roots are trusted at the end, want 1", len(roots))
			}
			if keys := keysIn(t, test.dir); len(keys) != 1 {
				t.Errorf("the keys that remain are %v, want 1", keys)
			}
		})
	}
}

func withDraft(t *testing.T, dir, name string) string {
	t.Helper()
	if err := writeFile(filepath.Join(dir, authorityDir, name), []byte(`{"acti`)); err != nil {
		t.Fatal(err)
	}
	return dir
}

func keysIn(t *testing.T, dir string) (keys []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if strings.HasSuffix(path, rootKeyFile) {
			keys = append(keys, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return keys
}
