package ca

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// A test starts the test binary as a second process. If one of these variables is set, TestMain executes the
// corresponding action and exits.
const (
	childLoads = "PILOTFISH_CA_TEST_LOAD" // load the authority and print the root
	childLimit = "PILOTFISH_CA_TEST_FILE_SIZE"
)

func TestMain(m *testing.M) {
	dir := os.Getenv(childLoads)
	if dir == "" {
		os.Exit(m.Run())
	}
	if os.Getenv(childLimit) != "" {
		limitFileSize()
	}
	a, err := Load(dir, Options{})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Print(string(a.RootPEM()))
	os.Exit(0)
}

// limitFileSize limits the size of files that this process writes, which simulates a quota or a full disk.
func limitFileSize() {
	signal.Ignore(syscall.SIGXFSZ)
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: 64, Max: 64}); err != nil {
		panic(err)
	}
}

func loadInChild(dir string, env ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(append(os.Environ(), childLoads+"="+dir), env...)
	cmd.Stdout, cmd.Stderr = &bytes.Buffer{}, &bytes.Buffer{}
	return cmd
}

func TestProcessesCreatingConcurrentlyShareOneAuthority(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	var children []*exec.Cmd
	for range 6 {
		child := loadInChild(dir)
		if err := child.Start(); err != nil {
			t.Fatal(err)
		}
		children = append(children, child)
	}
	for _, child := range children {
		if err := child.Wait(); err != nil {
			t.Fatalf("%v: %s", err, child.Stderr)
		}
	}
	root := load(t, dir, Options{MustExist: true}).RootPEM()
	for _, child := range children {
		if got := child.Stdout.(*bytes.Buffer).Bytes(); !bytes.Equal(got, root) {
			t.Errorf("the processes loaded different roots: %s", got)
		}
	}
	wantNothingBut(t, dir, authorityDir)
}

func TestGoroutinesCreatingConcurrentlyShareOneAuthority(t *testing.T) {
	dir := t.TempDir()
	roots := make(chan string, 8)
	for range cap(roots) {
		go func() {
			a, err := Load(dir, Options{})
			if err != nil {
				roots <- err.Error()
				return
			}
			roots <- string(a.RootPEM())
		}()
	}
	first := <-roots
	for range cap(roots) - 1 {
		if got := <-roots; got != first {
			t.Errorf("the two control planes have different roots: %s and %s", first, got)
		}
	}
}

func wantNothingBut(t *testing.T, dir string, names ...string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, entry := range entries {
		got = append(got, entry.Name())
	}
	if fmt.Sprint(got) != fmt.Sprint(names) {
		t.Errorf("the directory contains %v; want %v", got, names)
	}
}

func mode(t *testing.T, path string) fs.FileMode {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Mode().Perm()
}

func TestOnlyTheOwnerCanReadTheAuthority(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "state")
	load(t, dir, Options{})
	for path, want := range map[string]fs.FileMode{
		"": 0o700, authorityDir: 0o700,
		authorityDir + "/" + rootCertFile: 0o600, authorityDir + "/" + rootKeyFile: 0o600, authorityDir + "/" + tokenKeyFile: 0o600,
	} {
		if got := mode(t, filepath.Join(dir, path)); got != want {
			t.Errorf("%q has mode %04o; want %04o", path, got, want)
		}
	}
}

func TestAccessibleDirectoryIsClosedWithAWarning(t *testing.T) {
	dir := t.TempDir()
	load(t, dir, Options{})
	path := filepath.Join(dir, authorityDir)
	if err := os.Chmod(path, 0o755); err != nil {
		t.Fatal(err)
	}
	var book logBook
	load(t, dir, Options{Logger: book.logger()})
	if got := mode(t, path); got != 0o700 {
		t.Errorf("the directory has mode %04o", got)
	}
	if !strings.Contains(book.String(), "mode=0755") {
		t.Errorf("the log lacks a warning: %s", book.String())
	}
}

func TestWritableStateDirectoryCausesAWarning(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	var book logBook
	load(t, dir, Options{Logger: book.logger()})
	if !strings.Contains(book.String(), "chmod go-w "+dir) {
		t.Errorf("the log: %s", book.String())
	}
}

func TestReadableKeyIsRefused(t *testing.T) {
	for _, name := range []string{rootKeyFile, tokenKeyFile} {
		dir := t.TempDir()
		load(t, dir, Options{})
		path := filepath.Join(dir, authorityDir, name)
		if err := os.Chmod(path, 0o644); err != nil {
			t.Fatal(err)
		}
		_, err := Load(dir, Options{})
		wantError(t, err, dir, name, "mode 0644", "chmod 600")
		if err := os.Chmod(path, 0o600); err != nil {
			t.Fatal(err)
		}
		load(t, dir, Options{}) // the remedy in the error message must work
	}
}

func TestMissingOrDamagedFileIsReportedNotReplaced(t *testing.T) {
	for _, name := range []string{rootCertFile, rootKeyFile, tokenKeyFile} {
		dir := t.TempDir()
		load(t, dir, Options{})
		path := filepath.Join(dir, authorityDir, name)
		good, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, bad := range [][]byte{{}, good[:len(good)/2], append(good[:len(good):len(good)], good...), []byte("-----BEGIN X-----\n-----END X-----\n")} {
			if err := os.WriteFile(path, bad, 0o600); err != nil {
				t.Fatal(err)
			}
			_, err = Load(dir, Options{})
			wantError(t, err, dir, name+" is damaged", "backup", "move that directory away")
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		_, err = Load(dir, Options{})
		wantError(t, err, dir, name+" is missing", "backup", "move that directory away")
	}
}

func TestKeyOfAnotherRootIsRefused(t *testing.T) {
	dir, other := t.TempDir(), t.TempDir()
	load(t, dir, Options{})
	load(t, other, Options{})
	if err := os.Rename(filepath.Join(other, authorityDir, rootKeyFile), filepath.Join(dir, authorityDir, rootKeyFile)); err != nil {
		t.Fatal(err)
	}
	_, err := Load(dir, Options{})
	wantError(t, err, dir, rootKeyFile, "same backup")
}

func TestStateDirectoryBelowAFileNamesTheDirectory(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(file, "state")
	_, err := Load(dir, Options{})
	wantError(t, err, dir, "not a directory", "another state directory")
	_, err = Load(file, Options{})
	wantError(t, err, file, "not a directory", "another state directory")
}

func TestDiskWithoutSpaceNamesTheDirectoryAndLeavesNothing(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	child := loadInChild(dir, childLimit+"=1")
	if err := child.Run(); err == nil {
		t.Fatalf("creating the authority succeeded on a full disk: %s", child.Stdout)
	}
	wantError(t, errors.New(child.Stderr.(*bytes.Buffer).String()), dir, rootCertFile, "file too large", "free space")
	wantNothingBut(t, dir)
	load(t, dir, Options{}) // the authority must work after space is freed
}

func TestFileSystemErrorsHaveRemedies(t *testing.T) {
	for trouble, remedy := range map[error]string{
		syscall.ENOSPC: "free space", syscall.EDQUOT: "free space", syscall.EROFS: "writable", syscall.EACCES: "writable",
		syscall.ENOTDIR: "a file", syscall.EIO: "another state directory",
	} {
		err := dirStore{dir: "/somewhere"}.explain("making it", &fs.PathError{Op: "open", Path: "x", Err: trouble})
		wantError(t, err, "/somewhere", trouble.Error(), remedy)
		if !errors.Is(err, trouble) {
			t.Errorf("the error %v does not wrap its cause", err)
		}
	}
}

func TestNoStateDirectoryIsRefused(t *testing.T) {
	_, err := Load("", Options{})
	wantError(t, err, "state directory")
}

func TestMustExistDoesNotCreateAnAuthority(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "typo")
	_, err := Load(dir, Options{MustExist: true})
	wantError(t, err, dir, "no certificate authority", "control plane's state directory")
	if _, err := os.Stat(dir); err == nil {
		t.Error("Load created the directory although MustExist is set")
	}
}
