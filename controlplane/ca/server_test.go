package ca

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"
)

// shake performs a TLS handshake on loopback, and returns the client's connection state and the errors of both sides.
func shake(t *testing.T, server, client *tls.Config) (seen tls.ConnectionState, serverErr, clientErr error) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	accepted := make(chan error, 1)
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			accepted <- err
			return
		}
		defer func() { _ = conn.Close() }()
		over := tls.Server(conn, server)
		err = over.Handshake()
		seen = over.ConnectionState()
		_ = over.Close()
		accepted <- err
	}()
	conn, err := tls.Dial("tcp", listener.Addr().String(), client)
	if err == nil {
		// With TLS 1.3 the handshake of the client succeeds even if the server refuses the certificate. The client
		// receives the refusal with its first read.
		if _, err = conn.Read(make([]byte, 1)); errors.Is(err, io.EOF) {
			err = nil
		}
		_ = conn.Close()
	}
	return seen, <-accepted, err
}

func TestServerCertificateHasAllControlPlaneNames(t *testing.T) {
	a := load(t, t.TempDir(), Options{})
	server := a.ServerTLS("mesh.example", "127.77.0.1", "[fd00::1]", "localhost", "")
	for _, name := range []string{
		"istiod.istio-system.svc", "istiod.istio-system.svc.cluster.local", "pilotfish", "localhost", "127.0.0.1", "::1",
		"mesh.example", "127.77.0.1", "fd00::1",
	} {
		_, serverErr, clientErr := shake(t, server, &tls.Config{RootCAs: a.signing().pool, ServerName: name, NextProtos: []string{"h2"}})
		if serverErr != nil || clientErr != nil {
			t.Errorf("%s: %v, %v", name, serverErr, clientErr)
		}
	}
	_, _, err := shake(t, server, &tls.Config{RootCAs: a.signing().pool, ServerName: "other.example"})
	wantError(t, err, "not other.example")
}

func TestServerSupportsHTTP2OverTLS12AndNewer(t *testing.T) {
	a := load(t, t.TempDir(), Options{})
	server := a.ServerTLS()
	for version, ok := range map[uint16]bool{tls.VersionTLS10: false, tls.VersionTLS11: false, tls.VersionTLS12: true, tls.VersionTLS13: true} {
		seen, serverErr, clientErr := shake(t, server, &tls.Config{
			RootCAs: a.signing().pool, ServerName: "localhost", MinVersion: version, MaxVersion: version, NextProtos: []string{"h2"}})
		if (serverErr == nil && clientErr == nil) != ok {
			t.Errorf("%s: %v, %v", tls.VersionName(version), serverErr, clientErr)
		}
		if ok && seen.NegotiatedProtocol != "h2" {
			t.Errorf("the negotiated protocol is %q, want h2", seen.NegotiatedProtocol)
		}
	}
}

func TestWorkloadsVerifyEachOther(t *testing.T) {
	s := startServer(t, Options{})
	page, reviews := s.obtain(t, newKey(t), "shop", "page", 3600), s.obtain(t, rsaKey(t, 2048), "shop", "reviews", 3600)
	server := &tls.Config{Certificates: []tls.Certificate{reviews}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: s.signing().pool}
	client := &tls.Config{
		Certificates: []tls.Certificate{page},
		// Certificates have no DNS names, so the client checks the chain and the SPIFFE ID, as Envoy does.
		InsecureSkipVerify: true,
		VerifyConnection: func(state tls.ConnectionState) error {
			leaf := state.PeerCertificates[0]
			if leaf.URIs[0].String() != "spiffe://cluster.local/ns/shop/sa/reviews" {
				return errors.New("the wrong peer")
			}
			_, err := leaf.Verify(x509.VerifyOptions{Roots: s.signing().pool})
			return err
		},
	}
	seen, serverErr, clientErr := shake(t, server, client)
	if serverErr != nil || clientErr != nil {
		t.Fatalf("%v, %v", serverErr, clientErr)
	}
	if got := seen.VerifiedChains[0][0].URIs[0].String(); got != "spiffe://cluster.local/ns/shop/sa/page" {
		t.Errorf("the server sees the client %s", got)
	}
}

func TestWorkloadCannotImpersonateTheControlPlane(t *testing.T) {
	s := startServer(t, Options{})
	workload := s.obtain(t, newKey(t), "shop", "reviews", 3600)
	_, _, err := shake(t, &tls.Config{Certificates: []tls.Certificate{workload}},
		&tls.Config{RootCAs: s.signing().pool, ServerName: "istiod.istio-system.svc"})
	if err == nil {
		t.Error("a client accepted a workload's certificate as that of the control plane")
	}
}

func TestServerCertificateIsRenewedBeforeExpiry(t *testing.T) {
	now := newClock()
	a := load(t, t.TempDir(), Options{Clock: now.time})
	server := a.ServerTLS()
	current := func() *x509.Certificate {
		cert, err := server.GetCertificate(&tls.ClientHelloInfo{})
		if err != nil {
			t.Fatal(err)
		}
		return cert.Leaf
	}
	first := current()
	if again := current(); !again.Equal(first) {
		t.Error("each handshake issues a new server certificate")
	}
	now.advance(serverTTL/2 + time.Minute)
	second := current()
	if second.Equal(first) {
		t.Error("the server certificate is not renewed after half of its lifetime")
	}
	if !slices.Equal(second.DNSNames, first.DNSNames) {
		t.Errorf("the renewed certificate has other names: %v", second.DNSNames)
	}
	client := &tls.Config{RootCAs: a.signing().pool, ServerName: "localhost", Time: now.time}
	now.advance(3 * serverTTL)
	if _, serverErr, clientErr := shake(t, server, client); serverErr != nil || clientErr != nil {
		t.Errorf("after days: %v, %v", serverErr, clientErr)
	}
}

func TestServerReportsAnExpiredRoot(t *testing.T) {
	now := newClock()
	var book logBook
	a := load(t, t.TempDir(), Options{Clock: now.time, Logger: book.logger()})
	server := a.ServerTLS()
	now.advance(rootTTL + time.Hour)
	_, err := server.GetCertificate(&tls.ClientHelloInfo{})
	wantError(t, err, "expired at", a.location())
	if !strings.Contains(book.String(), "TLS handshakes fail") {
		t.Errorf("the log: %s", book.String())
	}
}

func TestServerRefusesConnectionsBetweenWorkloads(t *testing.T) {
	for _, c := range []struct {
		offered []string
		refused bool
	}{
		{nil, false}, {[]string{"h2"}, false}, {[]string{"istio-h2", "istio", "h2"}, true}, {[]string{"istio"}, true}, {[]string{"h2", "istio-http/1.1"}, true},
	} {
		if got := isWorkloadTLS(&tls.ClientHelloInfo{SupportedProtos: c.offered}); got != c.refused {
			t.Errorf("%q is refused: %v", c.offered, got)
		}
	}
}
