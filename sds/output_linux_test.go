package sds

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/sys/unix"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
	"github.com/pilotfish-mesh/pilotfish/internal/testpki"
)

// readOutput reads the identity files in a directory as another process does, which may read them during a replacement.
func readOutput(dir string) (Material, error) {
	files := IdentityFiles(dir)
	m, err := readKeyPair(files.CertFile, files.KeyFile)
	if err != nil {
		return m, err
	}
	m.Roots, err = os.ReadFile(files.RootFile)
	return m, err
}

func expectWritten(t *testing.T, dir string, want Material) {
	t.Helper()
	testenv.Eventually(t, "the identity is written", func() error {
		got, err := readOutput(dir)
		if err == nil && !got.equal(Material{Chain: want.Chain, Key: want.Key, Roots: want.Roots}) {
			err = errors.New("another identity is there")
		}
		return err
	})
}

func TestIdentityIsWrittenOnRotationWithoutSubscribers(t *testing.T) {
	root := testpki.New(t, "root")
	for _, mode := range []fs.FileMode{0, 0o644} {
		dir := filepath.Join(t.TempDir(), "certs")
		source := newFakeSource(newMaterial(t, root))
		startServer(t, Config{Source: source, Output: Output{Dir: dir, Mode: mode}})
		for range 5 {
			expectWritten(t, dir, source.Current())
			for _, name := range []string{chainFile, keyFile, rootsFile} {
				info, err := os.Stat(filepath.Join(dir, name))
				if want := max(mode, 0o600); err != nil || info.Mode() != want {
					t.Errorf("%s: mode %v (%v), want %v", name, info.Mode(), err, want)
				}
			}
			source.set(newMaterial(t, root))
		}
		testenv.Eventually(t, "no temporary files remain", func() error {
			left, err := filepath.Glob(dir + "/*" + newSuffix)
			if err == nil && len(left) > 0 {
				err = errors.New(left[0])
			}
			return err
		})
	}
}

func TestExtraRootsAreWrittenToOutput(t *testing.T) {
	dir, more := t.TempDir(), testpki.New(t, "more")
	source := newFakeSource(newMaterial(t, testpki.New(t, "root")))
	server := startServer(t, Config{Source: source, Output: Output{Dir: dir}})
	expectWritten(t, dir, source.Current())
	if err := server.SetExtraRoots("test", []string{string(more.PEM())}); err != nil {
		t.Fatal(err)
	}
	want := source.Current()
	want.Roots = append(bytes.Clone(want.Roots), more.PEM()...)
	expectWritten(t, dir, want)
}

func TestFullDiskKeepsOldFilesAndWriteIsRetried(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting requires root")
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	root, clock := testpki.New(t, "root"), newFakeClock()
	source := newFakeSource(newMaterial(t, root))
	server := startServer(t, Config{Source: source, Output: Output{Dir: dir}, Clock: clock})
	first := source.Current()
	expectWritten(t, dir, first)

	filler := filepath.Join(dir, "filler")
	if err := os.WriteFile(filler, make([]byte, 256<<10), 0o600); err == nil {
		t.Fatal("the disk is not full")
	}
	second := newMaterial(t, root)
	source.set(second)
	testenv.Eventually(t, "the failure is reported", func() error {
		if ok, reason := server.Health(); !ok || !strings.Contains(reason, "no space") {
			return errors.New(reason)
		}
		return nil
	})
	if testutil.ToFloat64(server.metrics.outputFailures) == 0 {
		t.Error("the failure is not counted")
	}
	expectWritten(t, dir, first)
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, "the write is retried", func() error {
		clock.advance(time.Second)
		got, err := readOutput(dir)
		if err == nil && !bytes.Equal(got.Chain, second.Chain) {
			err = errors.New("the old one is still there")
		}
		return err
	})
	testenv.Eventually(t, "the failure is no longer reported", func() error {
		if _, reason := server.Health(); reason != "" {
			return errors.New(reason)
		}
		return nil
	})
}

// An agent that starts while its CA is unreachable uses the saved identity, if CAConfig.Saved is set.
func TestSavedIdentityIsServedWhileCAIsUnreachable(t *testing.T) {
	dir := t.TempDir()
	ca := newAuthority(t)
	address, stop := ca.listen(t, "127.0.0.1:0", nil)
	config := caConfig(address)
	config.Saved = dir
	first := newSource(t, config)
	ctx, cancel := context.WithCancel(context.Background())
	server, err := New(Config{Socket: filepath.Join(t.TempDir(), "s"), Source: first, Output: Output{Dir: dir}})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Run(ctx) }()
	serial := nextSerial(t, first, "")
	expectWritten(t, dir, first.Current())
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	stop()

	second := newSource(t, config)
	if leaf := second.Current().Leaf; leaf == nil || leaf.SerialNumber.String() != serial {
		t.Fatal("the written identity is not served")
	}
	runSource(t, second)
	testenv.Eventually(t, "the unreachable CA is reported", func() error {
		if ok, reason := second.Health(); !ok || !strings.Contains(reason, "connection refused") {
			return errors.New(reason)
		}
		return nil
	})
	ca.listen(t, address, nil)
	nextSerial(t, second, serial)
}

func TestSavedIdentityOfAnotherWorkloadIsNotServed(t *testing.T) {
	root := testpki.New(t, "root")
	for name, spoil := range map[string]func(dir string){
		"nothing there": func(dir string) { _ = os.Remove(filepath.Join(dir, chainFile)) },
		"another identity": func(dir string) {
			cert, key := root.Workload(t, "spiffe://cluster.local/ns/default/sa/ratings")
			write(t, filepath.Join(dir, chainFile), cert)
			write(t, filepath.Join(dir, keyFile), key)
		},
		"another key": func(dir string) {
			_, key := root.Workload(t, identity)
			write(t, filepath.Join(dir, keyFile), key)
		},
		"another root": func(dir string) { write(t, filepath.Join(dir, rootsFile), testpki.New(t, "other").PEM()) },
		"half a file":  func(dir string) { write(t, filepath.Join(dir, chainFile), []byte("-----BEGIN CERT")) },
		"expired": func(dir string) {
			uri := mustParse(t, identity)
			key, err := newKeyPair(ECDSAP256, true)
			if err != nil {
				t.Fatal(err)
			}
			cert := root.Sign(t, &x509.Certificate{URIs: []*url.URL{uri}, NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: time.Now().Add(-time.Hour)}, key.signer.Public())
			write(t, filepath.Join(dir, chainFile), testpki.PEM(cert))
			write(t, filepath.Join(dir, keyFile), key.pem)
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			m := newMaterial(t, root)
			write(t, filepath.Join(dir, chainFile), m.Chain)
			write(t, filepath.Join(dir, keyFile), m.Key)
			write(t, filepath.Join(dir, rootsFile), m.Roots)
			config := caConfig("127.0.0.1:1")
			config.Saved = dir
			if newSource(t, config).Current().Leaf == nil {
				t.Fatal("a valid saved identity is not served")
			}
			spoil(dir)
			if leaf := newSource(t, config).Current().Leaf; leaf != nil {
				t.Errorf("%v is served", leaf.URIs)
			}
		})
	}
}
