package sds

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spiffe/go-spiffe/v2/proto/spiffe/workload"

	"github.com/pilotfish-mesh/pilotfish/internal/envoytest"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
	"github.com/pilotfish-mesh/pilotfish/internal/testpki"
)

// newSelfSigned returns a self-signed workload certificate with its key.
func newSelfSigned(t *testing.T) (cert, key []byte) {
	t.Helper()
	signer := testpki.New(t, "alone").Key
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: "alone"}, URIs: []*url.URL{mustParse(t, identity)}, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	by := &testpki.Authority{Cert: template, Key: signer}
	return testpki.PEM(by.Sign(t, template, signer.Public())), testpki.KeyPEM(t, signer)
}

// Envoy accepts a self-signed certificate as a root even if it is not a CA certificate.
func TestSelfSignedCertificateIsAcceptedAsRoot(t *testing.T) {
	for _, version := range testenv.EnvoyVersions() {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			cert, key := newSelfSigned(t)
			files := IdentityFiles(filepath.Join(dir, "identity"))
			mkdir(t, filepath.Dir(files.CertFile))
			write(t, files.CertFile, cert)
			write(t, files.KeyFile, key)
			write(t, files.RootFile, cert)
			source, err := NewFileSource(files)
			if err != nil {
				t.Fatal(err)
			}
			startServer(t, Config{Socket: dir + "/sds", Source: source})
			port := testenv.FreePort(t)
			envoytest.Start(t, testenv.EnvoyOf(t, version), dir, fmt.Sprintf(envoyBootstrap, port, "GRPC", backendPort(t)))
			pair, err := tls.X509KeyPair(cert, key)
			if err != nil {
				t.Fatal(err)
			}
			testenv.Eventually(t, "Envoy accepts a client with the self-signed certificate", func() error { return connectWith(port, pair) })
			if err := connectAs(t, port, testpki.New(t, "alone"), identity); err == nil {
				t.Error("Envoy accepts another certificate of the same name")
			}
		})
	}
}

// If a workload certificate is configured instead of its CA's, Envoy would reject all other peers.
func TestNonCARootIsRejected(t *testing.T) {
	root, other := testpki.New(t, "root"), testpki.New(t, "other")
	issued, _ := other.Workload(t, "spiffe://other/ns/default/sa/reviews")
	block, _ := pem.Decode(issued)
	itself, _ := newSelfSigned(t)
	const reason = `is not a CA certificate, so no certificate chains to it: replace it with the certificate of "CN=other"`

	t.Run("files", func(t *testing.T) {
		files := IdentityFiles(t.TempDir())
		cert, key := root.Workload(t, identity)
		write(t, files.CertFile, cert)
		write(t, files.KeyFile, key)
		write(t, files.RootFile, root.PEM())
		source, err := NewFileSource(files)
		if err != nil {
			t.Fatal(err)
		}
		server := startServer(t, Config{Source: source})
		testenv.Eventually(t, "the identity is read", func() error {
			if source.Current().Leaf == nil {
				return errors.New("no identity")
			}
			return nil
		})
		write(t, files.RootFile, append(root.PEM(), issued...))
		expectRejected(t, server, files.RootFile+": the root", reason)
		if roots := source.Current().Roots; string(roots) != string(root.PEM()) {
			t.Errorf("the roots are now\n%s", roots)
		}
	})
	t.Run("the control plane or the mesh", func(t *testing.T) {
		server := startServer(t, Config{Source: newFakeSource(newMaterial(t, root))})
		if err := server.SetExtraRoots("mesh", []string{string(other.PEM())}); err != nil {
			t.Fatal(err)
		}
		if err := server.SetExtraRoots("mesh", []string{string(root.PEM()), string(issued)}); err == nil || !strings.Contains(err.Error(), reason) {
			t.Errorf("rejected with %v", err)
		}
		stream := sotwStream(t, server)
		stream.subscribe("", RootName)
		roots := decode(t, stream.next().Resources[0]).GetValidationContext().GetTrustedCa().GetInlineBytes()
		if string(roots) != string(append(root.PEM(), other.PEM()...)) {
			t.Errorf("the roots are now\n%s", roots)
		}
		if err := server.SetExtraRoots("mesh", []string{string(itself)}); err != nil {
			t.Errorf("a self-signed certificate: %v", err)
		}
	})
	t.Run("Workload API", func(t *testing.T) {
		socket := filepath.Join(t.TempDir(), "agent.sock")
		api := newWorkloadAPI()
		listenUnix(t, socket, api.register)
		source := workloadSource(t, socket)
		server := startServer(t, Config{Source: source})
		good := &workload.X509SVIDResponse{Svids: []*workload.X509SVID{newSVID(t, root, identity)}}
		api.set(good)
		first := nextSerial(t, source, "")
		own := newSVID(t, root, identity)
		own.Bundle = append(append([]byte{}, root.Cert.Raw...), block.Bytes...)
		for name, r := range map[string]*workload.X509SVIDResponse{
			"checking the trust bundle: ": {Svids: []*workload.X509SVID{own}},
			"checking the trust bundle of spiffe://other: ": {Svids: []*workload.X509SVID{newSVID(t, root, identity)},
				FederatedBundles: map[string][]byte{"spiffe://other": block.Bytes}},
		} {
			api.set(r)
			expectRejected(t, server, name+"the root", reason)
		}
		if m := source.Current(); m.Leaf.SerialNumber.String() != first || string(m.Roots) != string(root.PEM()) {
			t.Errorf("the rejected roots are served: %s", m.Roots)
		}
	})
}

// expectRejected waits until Health reports all parts and is still ok.
func expectRejected(t *testing.T, server *Server, parts ...string) {
	t.Helper()
	testenv.Eventually(t, "the rejection is reported", func() error {
		ok, reason := server.Health()
		for _, part := range parts {
			if !ok || !strings.Contains(reason, part) {
				return fmt.Errorf("%v, %q", ok, reason)
			}
		}
		return nil
	})
}
