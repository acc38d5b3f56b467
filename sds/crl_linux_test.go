package sds

import (
	"bytes"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/envoytest"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
	"github.com/pilotfish-mesh/pilotfish/internal/testpki"
)

// revoke returns a CRL (PEM) with the serials.
func revoke(t testing.TB, a *testpki.Authority, serials ...*big.Int) []byte {
	t.Helper()

	list := &x509.RevocationList{Number: big.NewInt(1), ThisUpdate: time.Now().Add(-time.Minute), NextUpdate: time.Now().Add(time.Hour)}
	for _, serial := range serials {
		list.RevokedCertificateEntries = append(list.RevokedCertificateEntries, x509.RevocationListEntry{SerialNumber: serial, RevocationTime: time.Now().Add(-time.Minute)})
	}
	der, err := x509.CreateRevocationList(rand.Reader, list, a.Cert, a.Key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "X509 CRL", Bytes: der})
}

func TestEnvoyRejectsRevokedCertificates(t *testing.T) {
	dir := t.TempDir()
	crl := filepath.Join(dir, "crl", "ca-crl.pem")
	root := testpki.New(t, "root")
	server := startServer(t, Config{Socket: dir + "/sds", Source: newFakeSource(newMaterial(t, root)), CRLFile: crl})
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") }))
	t.Cleanup(backend.Close)
	port := testenv.FreePort(t)
	envoytest.Start(t, testenv.Envoy(t), dir, fmt.Sprintf(envoyBootstrap, port, "GRPC", backend.Listener.Addr().(*net.TCPAddr).Port))
	client := func() tls.Certificate {
		pair, err := tls.X509KeyPair(root.Workload(t, "spiffe://cluster.local/ns/default/sa/productpage"))
		if err != nil {
			t.Fatal(err)
		}
		return pair
	}
	good, bad := client(), client()
	testenv.Eventually(t, "Envoy accepts both certificates", func() error { return errors.Join(connectWith(port, good), connectWith(port, bad)) })

	mkdir(t, filepath.Dir(crl))
	write(t, crl, revoke(t, root, bad.Leaf.SerialNumber))
	testenv.Eventually(t, "Envoy rejects the revoked certificate", func() error {
		if connectWith(port, bad) == nil {
			return errors.New("let in")
		}
		return nil
	})
	if err := connectWith(port, good); err != nil {
		t.Errorf("the certificate that is not revoked: %v", err)
	}
	write(t, crl, []byte("half a li"))
	testenv.Eventually(t, "the broken file is reported", func() error {
		if ok, reason := server.Health(); !ok || !strings.Contains(reason, crl) {
			return errors.New(reason)
		}
		return nil
	})
	if connectWith(port, bad) == nil || connectWith(port, good) != nil {
		t.Error("a malformed file changed the served lists")
	}
	write(t, crl, revoke(t, root))
	testenv.Eventually(t, "Envoy accepts a certificate that is no longer revoked", func() error { return connectWith(port, bad) })
}

// Once Envoy has a CRL, it rejects the certificates of all CAs without a CRL.
func TestCRLIsServedOnlyWithItsCA(t *testing.T) {
	dir := t.TempDir()
	own, public := testpki.New(t, "own"), testpki.New(t, "public")
	write(t, dir+"/crl", revoke(t, own))
	write(t, dir+"/own", own.PEM())
	write(t, dir+"/public", public.PEM())
	server := startServer(t, Config{Source: newFakeSource(newMaterial(t, own)), CRLFile: dir + "/crl"})
	stream := sotwStream(t, server)
	stream.subscribe("", RootName, "file-root:"+dir+"/own", "file-root:"+dir+"/public", "file-root:system")
	got := map[string]bool{}
	for _, body := range stream.next().Resources {
		s := decode(t, body)
		got[filepath.Base(s.Name)] = s.GetValidationContext().GetCrl() != nil
	}
	for name, want := range map[string]bool{RootName: true, "own": true, "public": false, "file-root:system": false} {
		if has, there := got[name]; !there || has != want {
			t.Errorf("%s: there %v, list %v, want %v", name, there, has, want)
		}
	}
}

func TestExpiredCRLIsReported(t *testing.T) {
	root := testpki.New(t, "root")
	file := filepath.Join(t.TempDir(), "crl")
	write(t, file, revoke(t, root))
	clock := newFakeClock()
	server := startServer(t, Config{Source: newFakeSource(newMaterial(t, root)), CRLFile: file, Clock: clock})
	if _, reason := server.Health(); reason != "" {
		t.Error(reason)
	}
	clock.jump(2 * time.Hour)
	if ok, reason := server.Health(); !ok || !strings.Contains(reason, "expired") {
		t.Errorf("%v, %q", ok, reason)
	}
}

// Revoked certificates are still rejected while the CRL file is empty, as between truncation and writing. With expired
// lists, Envoy rejects every certificate, so an empty file then removes the lists.
func TestEmptyCRLFileKeepsListsInForce(t *testing.T) {
	root := testpki.New(t, "root")
	file := filepath.Join(t.TempDir(), "crl")
	write(t, file, nil)
	clock := newFakeClock()
	s := newStore(Config{Source: newFakeSource(newMaterial(t, root)), CRLFile: file, Clock: clock, Logger: slog.New(slog.DiscardHandler)}, newMetrics())
	lists := func(what string, want bool) {
		t.Helper()
		s.reload()
		if got := decode(t, s.lookup(RootName).body).GetValidationContext().GetCrl() != nil; got != want {
			t.Errorf("%s: lists %v, want %v", what, got, want)
		}
	}
	lists("empty at first", false)
	if problems := s.problems(); len(problems) > 0 {
		t.Error(problems)
	}
	write(t, file, revoke(t, root))
	lists("written", true)
	write(t, file, nil)
	lists("empty again", true)
	if got := s.problems(); len(got) != 1 || !strings.Contains(got[0], "empty") {
		t.Errorf("the problem is reported as %q", got)
	}
	clock.jump(2 * time.Hour)
	lists("empty when they have ended", false)
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	lists("taken away", false)
}

// A resource name contains the paths of roots and CRLs. If the CRL file is missing, the roots are not served.
func TestCRLOfRootsFileIsWatched(t *testing.T) {
	dir, root := t.TempDir(), testpki.New(t, "root")
	write(t, dir+"/roots", root.PEM())
	server := startServer(t, Config{})
	stream := sotwStream(t, server)
	name := "file-root:" + dir + "/roots~crl:" + dir + "/crl"
	stream.subscribe("", name)
	testenv.Eventually(t, "the missing lists are reported", func() error {
		if _, reason := server.Health(); !strings.Contains(reason, dir+"/crl") {
			return errors.New(reason)
		}
		return nil
	})
	for _, list := range [][]byte{revoke(t, root), revoke(t, root, big.NewInt(7))} {
		write(t, dir+"/crl", list)
		got := stream.next()
		context := decode(t, got.Resources[0]).GetValidationContext()
		if !bytes.Equal(context.GetCrl().GetInlineBytes(), list) || !context.GetOnlyVerifyLeafCertCrl() || len(context.GetTrustedCa().GetInlineBytes()) == 0 {
			t.Errorf("%v", context)
		}
		stream.subscribe(got.Nonce, name)
	}
}
