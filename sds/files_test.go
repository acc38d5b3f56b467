package sds

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	secretv3 "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
	"github.com/pilotfish-mesh/pilotfish/internal/testpki"
)

// A file that is written slowly in place is pushed once, when it is complete.
func TestFileWrittenInPiecesIsReadOnceComplete(t *testing.T) {
	file := filepath.Join(t.TempDir(), "ca.pem")
	old := testpki.New(t, "old")
	write(t, file, old.PEM())
	server := startServer(t, Config{Debounce: 3 * time.Second}) // the debounce exceeds every pause of this test
	stream := sotwStream(t, server)
	name := "file-root:" + file
	stream.subscribe("", name)
	stream.subscribe(stream.next().Nonce, name)
	whole := append(testpki.New(t, "one").PEM(), testpki.New(t, "two").PEM()...)
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		t.Fatal(err)
	}
	for piece := range bytes.SplitAfterSeq(whole, []byte("\n")) {
		if _, err := f.Write(piece); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	got := decode(t, stream.next().Resources[0]).GetValidationContext().GetTrustedCa().GetInlineBytes()
	if !bytes.Equal(got, whole) {
		t.Errorf("pushed\n%s", got)
	}
}

func TestTruncatedFileIsIgnored(t *testing.T) {
	dir := t.TempDir()
	m := newMaterial(t, testpki.New(t, "root"))
	cert, key := filepath.Join(dir, "cert"), filepath.Join(dir, "key")
	write(t, cert, m.Chain)
	write(t, key, m.Key)
	server := startServer(t, Config{})
	stream := sotwStream(t, server)
	name := "file-cert:" + cert + "~" + key
	stream.subscribe("", name)
	sent := stream.next()
	stream.subscribe(sent.Nonce, name)
	above := testpki.New(t, "root").PEM()
	for _, spoil := range []func(){
		func() { write(t, cert, m.Chain[:len(m.Chain)/2]) },
		func() { write(t, cert, slices.Concat(m.Chain, above[:len(above)/2])) },
		func() { write(t, cert, nil) },
		func() { write(t, key, m.Key[:len(m.Key)/2]) },
		func() { _ = os.Remove(cert) },
		func() { _ = os.Remove(key) },
		func() { _ = os.Remove(cert); mkdir(t, cert) },
		func() { _ = os.Remove(key); _ = syscall.Mkfifo(key, 0o600) }, // reading a pipe would block
		func() { write(t, cert, make([]byte, maxFile+1)) },
	} {
		spoil()
		testenv.Eventually(t, "the invalid file is reported", func() error {
			if ok, reason := server.Health(); !ok || !strings.Contains(reason, dir) {
				return fmt.Errorf("%v, %q", ok, reason)
			}
			return nil
		})
		_ = os.Remove(cert)
		_ = os.Remove(key)
		write(t, cert, m.Chain)
		write(t, key, m.Key)
		testenv.Eventually(t, "the source is healthy again", func() error {
			if _, reason := server.Health(); reason != "" {
				return errors.New(reason)
			}
			return nil
		})
	}
	next := newMaterial(t, testpki.New(t, "root"))
	write(t, key, next.Key)
	write(t, cert, next.Chain)
	if got := decode(t, stream.next().Resources[0]).GetTlsCertificate().CertificateChain.GetInlineBytes(); !bytes.Equal(got, next.Chain) {
		t.Error("the pushed certificate is not the next valid one")
	}
}

func TestInvalidCertificateDoesNotReplaceValidOne(t *testing.T) {
	dir, root, clock := t.TempDir(), testpki.New(t, "root"), newFakeClock()
	config := IdentityFiles(dir)
	config.Clock, config.Debounce = clock, time.Millisecond
	put := func(m Material) {
		write(t, config.RootFile, m.Roots)
		write(t, config.KeyFile, m.Key)
		write(t, config.CertFile, m.Chain)
	}
	source, err := NewFileSource(config)
	if err != nil {
		t.Fatal(err)
	}
	put(newMaterial(t, root))
	runSource(t, source)
	first := nextSerial(t, source, "")
	of := func(begin, end time.Duration) Material {
		key, err := newKeyPair(ECDSAP256, false)
		if err != nil {
			t.Fatal(err)
		}
		leaf := root.Sign(t, &x509.Certificate{NotBefore: time.Now().Add(begin), NotAfter: time.Now().Add(end)}, key.signer.Public())
		return Material{Roots: root.PEM(), Key: key.pem, Chain: testpki.PEM(leaf), Leaf: leaf}
	}
	// The clock advances by some seconds while the test waits for the reason, because the first check may see only one
	// of the two files.
	for what, bad := range map[string]Material{"ended": of(-2*time.Hour, -time.Hour), "not begun": of(30*time.Hour, 31*time.Hour)} {
		put(bad)
		reason := "valid from " + bad.Leaf.NotBefore.UTC().Format(time.RFC3339)
		testenv.Eventually(t, "the reason names the certificate that has "+what, func() error {
			clock.advance(fastPoll)
			if ok, got := source.Health(); !ok || !strings.Contains(got, reason) {
				return fmt.Errorf("%v, %q", ok, got)
			}
			return nil
		})
		if source.Current().Leaf.SerialNumber.String() != first {
			t.Errorf("the certificate that has %s is served", what)
		}
	}
	next := of(-time.Minute, 48*time.Hour)
	put(next)
	testenv.Eventually(t, "a valid certificate is served", func() error {
		clock.advance(fastPoll)
		if _, reason := source.Health(); reason != "" || source.Current().Leaf.SerialNumber.Cmp(next.Leaf.SerialNumber) != 0 {
			return errors.New(reason)
		}
		return nil
	})
}

func TestPrivateKeyInCertificateFileIsNotServed(t *testing.T) {
	dir := t.TempDir()
	root := testpki.New(t, "root")
	cert, key := root.Workload(t, identity)
	write(t, dir+"/both.pem", slices.Concat(cert, key))
	write(t, dir+"/roots.pem", slices.Concat(key, root.PEM()))
	stream := sotwStream(t, startServer(t, Config{Source: newFakeSource(Material{})}))
	stream.subscribe("", "file-cert:"+dir+"/both.pem~"+dir+"/both.pem", "file-root:"+dir+"/roots.pem")
	for seen := 0; seen < 2; {
		for _, resource := range stream.next().Resources {
			seen++
			s := decode(t, resource)
			chain, roots := s.GetTlsCertificate().GetCertificateChain().GetInlineBytes(), s.GetValidationContext().GetTrustedCa().GetInlineBytes()
			if !bytes.Equal(chain, cert) && !bytes.Equal(roots, root.PEM()) {
				t.Errorf("%s has\n%s%s", s.Name, chain, roots)
			}
		}
	}
}

// A change of any symbolic link in a file's path is detected.
func TestSymlinksInPathAreWatched(t *testing.T) {
	base := t.TempDir()
	cas := map[string]*testpki.Authority{}
	for _, name := range []string{"a", "b", "c"} {
		cas[name] = testpki.New(t, name)
		mkdir(t, filepath.Join(base, name, "certs"))
		write(t, filepath.Join(base, name, "certs", "ca.pem"), cas[name].PEM())
	}
	link := func(target, name string) {
		t.Helper()
		tmp := filepath.Join(base, "tmp")
		if err := errors.Join(os.Symlink(target, tmp), os.Rename(tmp, filepath.Join(base, name))); err != nil {
			t.Fatal(err)
		}
	}
	link("a", "current")
	link("current", "outer")
	server := startServer(t, Config{})
	stream := sotwStream(t, server)
	name := "file-root:" + base + "/outer/certs/ca.pem"
	expect := func(ca string) {
		t.Helper()
		r := stream.next()
		if got := decode(t, r.Resources[0]).GetValidationContext().GetTrustedCa().GetInlineBytes(); !bytes.Equal(got, cas[ca].PEM()) {
			t.Errorf("not the root %s", ca)
		}
		stream.subscribe(r.Nonce, name)
	}
	stream.subscribe("", name)
	expect("a")
	link("b", "current")
	expect("b")
	link("../"+filepath.Base(base)+"/c", "outer")
	expect("c")
}

func TestTenThousandSubscriptionsAreReleased(t *testing.T) {
	const files, streams, each = 100, 100, 100
	dir := t.TempDir()
	root := testpki.New(t, "root").PEM()
	var all []string
	for i := range files {
		file := filepath.Join(dir, fmt.Sprint(i))
		write(t, file, root)
		all = append(all, "file-root:"+file)
	}
	server := startServer(t, Config{Source: newFakeSource(newMaterial(t, testpki.New(t, "mesh")))})
	conn := dialServer(t, server)
	client := secretv3.NewSecretDiscoveryServiceClient(conn)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for range 2 {
		var open []secretv3.SecretDiscoveryService_DeltaSecretsClient
		for i := range streams {
			stream, err := client.DeltaSecrets(ctx)
			if err != nil {
				t.Fatal(err)
			}
			// Each name has a different path to the same file.
			names := make([]string, each)
			for j := range names {
				names[j] = fmt.Sprintf("file-root:%s/%s%d", dir, strings.Repeat("./", i), j)
			}
			if err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: secretType, ResourceNamesSubscribe: names}); err != nil {
				t.Fatal(err)
			}
			open = append(open, stream)
		}
		for _, stream := range open {
			// If a busy disk needs more than a second for a file, its secret arrives later.
			for got := map[string]bool{}; len(got) < each; {
				r, err := stream.Recv()
				if err != nil {
					t.Fatalf("%d secrets, %v", len(got), err)
				}
				for _, secret := range r.Resources {
					got[secret.Name] = true
				}
			}
			if err := stream.CloseSend(); err != nil {
				t.Fatal(err)
			}
		}
		testenv.Eventually(t, "all files and streams are released", func() error {
			server.secrets.mu.Lock()
			defer server.secrets.mu.Unlock()
			if n, m := len(server.secrets.fileSecrets), len(server.secrets.streams); n+m > 0 {
				return fmt.Errorf("%d files and %d streams", n, m)
			}
			return nil
		})
	}
	// Later subscriptions are served as before.
	stream := sotwStream(t, server)
	stream.subscribe("", DefaultName, all[0])
	for got := map[string]bool{}; !got[DefaultName] || !got[all[0]]; {
		for _, secret := range stream.next().Resources {
			got[decode(t, secret).Name] = true
		}
	}
}

func TestFetchAnswersOnce(t *testing.T) {
	source := newFakeSource(Material{})
	server := startServer(t, Config{Source: source})
	client := secretv3.NewSecretDiscoveryServiceClient(dialServer(t, server))
	_, err := client.FetchSecrets(t.Context(), &discoveryv3.DiscoveryRequest{TypeUrl: secretType, ResourceNames: []string{"kubernetes://x"}})
	if status.Code(err) != codes.NotFound {
		t.Errorf("an unknown name: %v", err)
	}
	type result struct {
		r   *discoveryv3.DiscoveryResponse
		err error
	}
	answered := make(chan result, 1)
	go func() {
		r, err := client.FetchSecrets(t.Context(), &discoveryv3.DiscoveryRequest{TypeUrl: secretType, ResourceNames: []string{DefaultName}})
		answered <- result{r, err}
	}()
	source.set(newMaterial(t, testpki.New(t, "root")))
	if a := <-answered; a.err != nil || resourceNames(t, a.r) != DefaultName {
		t.Errorf("%v, %v", a.r, a.err)
	}
}

func TestFederatedRootsAreAddedAndRemoved(t *testing.T) {
	root, other := testpki.New(t, "root"), testpki.New(t, "other")
	server := startServer(t, Config{Source: newFakeSource(newMaterial(t, root))})
	stream := sotwStream(t, server)
	has := func() bool {
		t.Helper()
		r := stream.next()
		stream.subscribe(r.Nonce, RootName)
		roots := decode(t, r.Resources[0]).GetValidationContext().GetTrustedCa().GetInlineBytes()
		if !bytes.Contains(roots, bytes.TrimSpace(root.PEM())) {
			t.Error("the workload's root is missing")
		}
		return bytes.Contains(roots, bytes.TrimSpace(other.PEM()))
	}
	stream.subscribe("", RootName)
	if has() {
		t.Error("the root is trusted before it is added")
	}
	for _, want := range []bool{true, false} {
		var roots []string
		if want {
			roots = []string{string(other.PEM()), string(root.PEM())}
		}
		if err := server.SetExtraRoots("mesh", []string{string(other.PEM()), "garbage"}); err == nil {
			t.Error("an invalid root is accepted")
		}
		if err := server.SetExtraRoots("mesh", roots); err != nil {
			t.Fatal(err)
		}
		if got := has(); got != want {
			t.Errorf("the other domain's root is served: %v, want %v", got, want)
		}
	}
}
