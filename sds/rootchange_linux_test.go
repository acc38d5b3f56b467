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

// proxied starts an Envoy with its identity from an SDS server in the directory, and gives its port.
func proxied(t *testing.T, envoy, dir, protocol string) (port int) {
	t.Helper()
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") }))
	t.Cleanup(backend.Close)
	port = testenv.FreePort(t)
	envoytest.Start(t, envoy, dir, fmt.Sprintf(envoyBootstrap, port, protocol, backend.Listener.Addr().(*net.TCPAddr).Port))
	return port
}

// held is a connection to Envoy that stays open.
type held struct {
	conn *tls.Conn
	in   *bufio.Reader
}

func hold(t *testing.T, port int, client *testpki.Authority) *held {
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
	return &held{conn, bufio.NewReader(conn)}
}

func (h *held) request() error {
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
		t.Run(protocol, func(t *testing.T) { t.Parallel(); newRoot(t, testenv.EnvoyOf(t, version), protocol) })
	}
}

func newRoot(t *testing.T, envoy, protocol string) {
	ca := newAuthority(t)
	before, after := ca.root, testpki.New(t, "another root")
	address, _ := ca.listen(t, "127.0.0.1:0", nil)
	clock := newFakeClock()
	config := caConfig(address)
	config.Clock = clock
	source := newSource(t, config)
	dir := t.TempDir()
	serveUntilStopped(t, dir, source)
	port := proxied(t, envoy, dir, protocol)
	testenv.Eventually(t, "Envoy serves", func() error { _, err := handshake(t, port, before, before); return err })
	first := nextSerial(t, source, "")
	connection := hold(t, port, before)
	stillHeld := func(when string) {
		t.Helper()
		if err := connection.request(); err != nil {
			t.Fatalf("%s, the connection of before: %v", when, err)
		}
	}
	stillHeld("at first")

	ca.set(func(csr *x509.CertificateRequest) ([]string, error) {
		return []string{ca.sign(after, csr, nil), string(after.PEM())}, nil
	})
	clock.advance(35 * time.Minute)
	tick(t, clock, source, first)
	testenv.Eventually(t, "Envoy has a certificate of the new root, and trusts it", func() error { _, err := handshake(t, port, after, after); return err })
	stillHeld("with the new root")
	if _, err := handshake(t, port, before, after); err != nil {
		t.Errorf("a client with a certificate of the old root: %v", err)
	}

	testenv.Eventually(t, "the old root is not trusted any more", func() error {
		clock.advance(time.Minute)
		if _, err := handshake(t, port, before, after); err == nil {
			return fmt.Errorf("a client of it is let in")
		}
		return nil
	})
	stillHeld("without the old root")
}

// measured is how often it is looked how soon Envoy has a successor, which the log tells.
const measured = 8

func TestSuccessorReachesEnvoy(t *testing.T) {
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
		port := proxied(t, testenv.Envoy(t), dir, "DELTA_GRPC")
		serial := nextSerial(t, source, "")
		within(t, port, ca.root, func() (time.Time, string) {
			ca.life += time.Hour
			clock.advance(source.NextRotation().Sub(clock.Now()) + time.Second)
			serial = tick(t, clock, source, serial)
			return time.Unix(0, answered.Load()), serial
		})
	})
	t.Run("from files", func(t *testing.T) {
		root := testpki.New(t, "root")
		files := Files(t.TempDir())
		put := func() (string, time.Time) {
			m := material(t, root)
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
		port := proxied(t, testenv.Envoy(t), dir, "DELTA_GRPC")
		within(t, port, root, func() (time.Time, string) {
			serial, at := put()
			return at, serial
		})
	})
}

// within renews several times and measures from the time that renew gives to when Envoy shows the certificate.
func within(t *testing.T, port int, root *testpki.Authority, renew func() (since time.Time, serial string)) {
	t.Helper()
	testenv.Eventually(t, "Envoy serves", func() error { _, err := handshake(t, port, root, root); return err })
	var took []time.Duration
	for range measured {
		since, want := renew()
		for got := ""; got != want; {
			if time.Since(since) > 10*time.Second {
				t.Fatalf("Envoy shows %s still, not %s", got, want)
			}
			got, _ = handshake(t, port, root, root)
		}
		took = append(took, time.Since(since))
	}
	slices.Sort(took)
	t.Logf("Envoy shows a successor after %v (median of %d), %v to %v", took[measured/2], measured, took[0], took[measured-1])
}
