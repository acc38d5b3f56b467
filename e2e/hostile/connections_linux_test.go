package hostile

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	grpcbackoff "google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	securityv1 "istio.io/api/security/v1alpha1"

	"github.com/pilotfish-mesh/pilotfish/internal/backoff"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// connectionAttacks are attempts to use up the control plane's slots for connections.
var connectionAttacks = []attack{
	{
		name: "TLS handshakes that never end do not use up the slots for proxies", position: unauthenticated,
		limit:   "an eighth of the slots; one of the attacker's connections is closed for each new client",
		service: "clients with a token or a certificate connect within 5 s, and on the attacker's address within 30 s",
		run:     dribbleHandshakes,
	},
}

// dribble keeps connections from one source address, on which it sends a ClientHello byte by byte. It replaces those that
// the server closes.
func dribble(ctx context.Context, group *sync.WaitGroup, source, target string, count int) {
	hello := recordClientHello()
	for range count {
		group.Go(func() {
			dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(source)}, Timeout: 5 * time.Second}
			for ctx.Err() == nil {
				if conn, err := dialer.DialContext(ctx, "tcp", target); err == nil {
					sendSlowly(ctx, conn, hello)
					_ = conn.Close()
				}
				backoff.Sleep(ctx, 50*time.Millisecond)
			}
		})
	}
}

// sendSlowly sends data byte by byte until the server closes the connection.
func sendSlowly(ctx context.Context, conn net.Conn, data []byte) {
	for _, b := range data {
		if _, err := conn.Write([]byte{b}); err != nil || !backoff.Sleep(ctx, 20*time.Millisecond) {
			return
		}
	}
}

// recordClientHello returns the first flight of a TLS client.
func recordClientHello() []byte {
	client, server := net.Pipe()
	go func() {
		_ = tls.Client(client, &tls.Config{ServerName: "istiod.istio-system.svc", NextProtos: []string{"h2"}}).Handshake()
	}()
	hello := make([]byte, 4096)
	n, _ := server.Read(hello)
	_ = server.Close()
	return hello[:n]
}

func dribbleHandshakes(t *testing.T) {
	c := startControlPlane(t, "--max-connections", "160")
	token := c.token(t, "reviews")
	certificate := c.obtainCertificate(t, token, "reviews")
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	defer group.Wait()
	defer cancel()
	// 127.0.0.2 is also the source address of a legitimate client.
	for _, source := range []string{"127.0.0.2", "127.0.0.3"} {
		dribble(ctx, &group, source, c.secure, 40)
	}
	testenv.Eventually(t, "the attacker has as many connections as he can", func() error {
		if n := c.connections(t); n < 20 {
			return fmt.Errorf("%d connections", n)
		}
		return nil
	})
	for range 5 {
		for what, client := range map[string]client{
			"token":                                 {"127.0.0.1", token, nil, 5 * time.Second},
			"certificate":                           {"127.0.0.1", "", certificate, 5 * time.Second},
			"token on the attacker's address":       {"127.0.0.2", token, nil, 30 * time.Second},
			"certificate on the attacker's address": {"127.0.0.2", "", certificate, 30 * time.Second},
		} {
			took, err := c.connect(ctx, client)
			if err != nil {
				t.Errorf("client with a %s: %v after %v", what, err, took)
			}
			t.Logf("client with a %s: %v", what, took)
		}
	}
	c.assertReady(t)
}

// client is a legitimate client of the secure port. It has a token or a certificate.
type client struct {
	source      string
	token       string
	certificate *tls.Certificate
	timeout     time.Duration
}

// connect obtains a certificate over a new connection, with retries until the timeout.
func (c *controlPlane) connect(ctx context.Context, as client) (time.Duration, error) {
	config := c.tls()
	if as.certificate != nil {
		config.Certificates = []tls.Certificate{*as.certificate}
	}
	if as.token != "" {
		ctx = addToken(ctx, as.token)
	}
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(as.source)}}
	often := grpc.ConnectParams{Backoff: grpcbackoff.Config{BaseDelay: 200 * time.Millisecond, Multiplier: 1, MaxDelay: 200 * time.Millisecond}}
	conn, err := grpc.NewClient(c.secure, grpc.WithTransportCredentials(credentials.NewTLS(config)), grpc.WithConnectParams(often),
		grpc.WithContextDialer(func(ctx context.Context, to string) (net.Conn, error) { return dialer.DialContext(ctx, "tcp", to) }))
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	start := time.Now()
	ctx, cancel := context.WithTimeout(ctx, as.timeout)
	defer cancel()
	csr, _ := makeRequest("reviews")
	err = retry(ctx, func() error {
		_, err := securityv1.NewIstioCertificateServiceClient(conn).CreateCertificate(ctx,
			&securityv1.IstioCertificateRequest{Csr: csr, ValidityDuration: 3600}, grpc.WaitForReady(true))
		return err
	})
	return time.Since(start), err
}

// makeRequest creates a key and a certificate request for a service account of namespace default.
func makeRequest(account string) (csr string, key *ecdsa.PrivateKey) {
	key, _ = ecdsa.GenerateKey(elliptic.P256(), rand.Reader) // never fails: see its documentation
	id := &url.URL{Scheme: "spiffe", Host: "cluster.local", Path: "/ns/default/sa/" + account}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{URIs: []*url.URL{id}}, key)
	if err != nil {
		panic(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})), key
}

// obtainCertificate returns a certificate of the mesh with its key.
func (c *controlPlane) obtainCertificate(t *testing.T, token, account string) *tls.Certificate {
	t.Helper()
	csr, key := makeRequest(account)
	conn := c.dial(t)
	defer conn.Close()
	answer, err := securityv1.NewIstioCertificateServiceClient(conn).CreateCertificate(addToken(t.Context(), token),
		&securityv1.IstioCertificateRequest{Csr: csr, ValidityDuration: 3600}, grpc.WaitForReady(true))
	if err != nil {
		t.Fatal(err)
	}
	certificate := &tls.Certificate{PrivateKey: key}
	for rest := []byte(strings.Join(answer.GetCertChain(), "")); ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			return certificate
		}
		certificate.Certificate = append(certificate.Certificate, block.Bytes)
	}
}
