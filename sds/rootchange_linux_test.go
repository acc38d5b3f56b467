package sds

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/envoytest"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
	"github.com/pilotfish-mesh/pilotfish/internal/testpki"
)

// startProxy starts an Envoy with an identity from the SDS server in dir, and returns its port.
func startProxy(t *testing.T, envoy, dir, protocol string) (port int) {
	t.Helper()
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") }))
	t.Cleanup(backend.Close)
	port = testenv.FreePort(t)
	envoytest.Start(t, envoy, dir, fmt.Sprintf(envoyBootstrap, port, protocol, backend.Listener.Addr().(*net.TCPAddr).Port))
	return port
}

// openConn is an open connection to Envoy.
type openConn struct {
	conn *tls.Conn
	in   *bufio.Reader
}

func openConnection(t *testing.T, port int, client *testpki.Authority) *openConn {
	t.Helper()
	cert, key := client.Workload(t, "spiffe://cluster.local/ns/default/sa/productpage")
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := tls.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port), &tls.Config{Certificates: []tls.Certificate{pair}, InsecureSkipVerify: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return &openConn{conn, bufio.NewReader(conn)}
}

func (h *openConn) request() error {
	if _, err := io.WriteString(h.conn, "GET / HTTP/1.1\r\nHost: a\r\n\r\n"); err != nil {
		return err
	}
	response, err := http.ReadResponse(h.in, nil)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	_, err = io.ReadAll(response.Body)
	return err
}

func TestNewRootBreaksNoConnection(t *testing.T) {
	for protocol, version := range map[string]string{"GRPC": testenv.OldEnvoyVersion, "DELTA_GRPC": testenv.EnvoyVersion} {
		t.Run(protocol, func(t *testing.T) { t.Parallel(); testNewRoot(t, testenv.EnvoyOf(t, version), protocol) })
	}
}

func testNewRoot(t *testing.T, envoy, protocol string) {
	ca := newAuthority(t)
	before, after := ca.root, testpki.New(t, "another root")
	address, _ := ca.listen(t, "127.0.0.1:0", nil)
	clock := newFakeClock()
	config := caConfig(address)
	config.Clock = clock
	source := newSource(t, config)
	dir := t.TempDir()
	serveUntilStopped(t, dir, source)
	port := startProxy(t, envoy, dir, protocol)
	testenv.Eventually(t, "Envoy serves", func() error { _, err := handshake(t, port, before, before); return err })
	first := nextSerial(t, source, "")
	connection := openConnection(t, port, before)
	expectOpen := func(when string) {
		t.Helper()
		if err := connection.request(); err != nil {
			t.Fatalf("%s, the old connection: %v", when, err)
		}
	}
	expectOpen("at first")

	ca.set(func(csr *x509.CertificateRequest) ([]string, error) {
		return []string{ca.sign(after, csr, nil), string(after.PEM())}, nil
	})
	clock.advance(35 * time.Minute)
	advanceToRotation(t, clock, source, first)
	testenv.Eventually(t, "Envoy has a certificate of the new root, and trusts it", func() error { _, err := handshake(t, port, after, after); return err })
	expectOpen("with the new root")
	if _, err := handshake(t, port, before, after); err != nil {
		t.Errorf("a client with a certificate of the old root: %v", err)
	}

	testenv.Eventually(t, "the old root is no longer trusted", func() error {
		clock.advance(time.Minute)
		if _, err := handshake(t, port, before, after); err == nil {
			return fmt.Errorf("Envoy accepts a client of the old root")
		}
		return nil
	})
	expectOpen("without the old root")
}

// rotationSamples is the number of rotations that are measured. The test only logs the delays.
const rotationSamples = 8

func TestRotatedCertificateReachesEnvoy(t *testing.T) {
	t.Run("from the authority", func(t *testing.T) {
		ca := newAuthority(t)
		address, _ := ca.listen(t, "127.0.0.1:0", nil)
		clock := newFakeClock()
		config := caConfig(address)
		config.Clock = clock
		source := newSource(t, config)
		dir := t.TempDir()
		serveUntilStopped(t, dir, source)
		var answered atomic.Int64
		ca.set(func(csr *x509.CertificateRequest) ([]string, error) {
			answer, err := ca.good(csr)
			answered.Store(time.Now().UnixNano())
			return answer, err
		})
		port := startProxy(t, testenv.Envoy(t), dir, "DELTA_GRPC")
		serial := nextSerial(t, source, "")
		measureRotation(t, port, ca.root, func() (time.Time, string) {
			ca.life += time.Hour
			clock.advance(source.NextRotation().Sub(clock.Now()) + time.Second)
			serial = advanceToRotation(t, clock, source, serial)
			return time.Unix(0, answered.Load()), serial
		})
	})
	t.Run("from files", func(t *testing.T) {
		root := testpki.New(t, "root")
		files := IdentityFiles(t.TempDir())
		put := func() (string, time.Time) {
			m := newMaterial(t, root)
			write(t, files.KeyFile, m.Key)
			write(t, files.CertFile, m.Chain)
			return m.Leaf.SerialNumber.String(), time.Now()
		}
		write(t, files.RootFile, root.PEM())
		put()
		source, err := NewFileSource(files)
		if err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		serveUntilStopped(t, dir, source)
		port := startProxy(t, testenv.Envoy(t), dir, "DELTA_GRPC")
		measureRotation(t, port, root, func() (time.Time, string) {
			serial, at := put()
			return at, serial
		})
	})
}

// measureRotation renews the certificate several times. It measures the time from the start that renew returns until
// Envoy presents the new certificate.
func measureRotation(t *testing.T, port int, root *testpki.Authority, renew func() (start time.Time, serial string)) {
	t.Helper()
	testenv.Eventually(t, "Envoy serves", func() error { _, err := handshake(t, port, root, root); return err })
	var delays []time.Duration
	for range rotationSamples {
		start, want := renew()
		for got := ""; got != want; {
			if time.Since(start) > 10*time.Second {
				t.Fatalf("Envoy still presents %s, want %s", got, want)
			}
			got, _ = handshake(t, port, root, root)
		}
		delays = append(delays, time.Since(start))
	}
	slices.Sort(delays)
	t.Logf("Envoy presents a new certificate after %v (median of %d), %v to %v", delays[rotationSamples/2], rotationSamples, delays[0], delays[rotationSamples-1])
}
