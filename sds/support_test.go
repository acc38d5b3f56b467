package sds

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	securityv1 "istio.io/api/security/v1alpha1"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
	"github.com/pilotfish-mesh/pilotfish/internal/testpki"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const identity = "spiffe://cluster.local/ns/default/sa/reviews"

// newLogger returns a logger that writes to the returned buffer. If the test fails, the buffer is logged.
func newLogger(t *testing.T) (*slog.Logger, *testenv.Buffer) {
	log := &testenv.Buffer{}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the log:\n%s", log)
		}
	})
	return slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug})), log
}

// authority is a CA whose responses the test sets.
type authority struct {
	securityv1.UnimplementedIstioCertificateServiceServer
	t    *testing.T
	root *testpki.Authority
	life time.Duration

	mu     sync.Mutex
	answer func(csr *x509.CertificateRequest) ([]string, error)
	calls  atomic.Int32
	tokens []string
	signer string // CertSigner in the metadata of the last request
}

func newAuthority(t *testing.T) *authority {
	a := &authority{t: t, root: testpki.New(t, "root"), life: time.Hour}
	a.answer = a.good
	return a
}

func (a *authority) set(answer func(*x509.CertificateRequest) ([]string, error)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.answer = answer
}

func (a *authority) good(csr *x509.CertificateRequest) ([]string, error) {
	return []string{a.sign(a.root, csr, nil), string(a.root.PEM())}, nil
}

// sign signs the request's key. edit changes the template.
func (a *authority) sign(by *testpki.Authority, csr *x509.CertificateRequest, edit func(*x509.Certificate)) string {
	template := &x509.Certificate{
		URIs: csr.URIs, NotBefore: time.Now().Add(-time.Second), NotAfter: time.Now().Add(a.life),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	if edit != nil {
		edit(template)
	}
	return string(testpki.PEM(by.Sign(a.t, template, csr.PublicKey)))
}

func (a *authority) CreateCertificate(ctx context.Context, r *securityv1.IstioCertificateRequest) (*securityv1.IstioCertificateResponse, error) {
	a.calls.Add(1)
	block, _ := pem.Decode([]byte(r.Csr))
	if block == nil {
		return nil, status.Error(codes.InvalidArgument, "no CSR")
	}
	csr, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil || csr.CheckSignature() != nil {
		return nil, status.Errorf(codes.InvalidArgument, "bad CSR: %v", err)
	}
	md, _ := metadata.FromIncomingContext(ctx)
	a.mu.Lock()
	a.tokens = append(a.tokens, strings.Join(md.Get("authorization"), ","))
	a.signer = r.GetMetadata().GetFields()["CertSigner"].GetStringValue()
	answer := a.answer
	a.mu.Unlock()
	chain, err := answer(csr)
	return &securityv1.IstioCertificateResponse{CertChain: chain}, err
}

// listen serves the authority until stop is called or the test ends.
func (a *authority) listen(t *testing.T, address string, config *tls.Config) (at string, stop func()) {
	t.Helper()
	if address == "127.0.0.1:0" {
		address = fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t)) // remains reserved for the test after stop
	}
	var listener net.Listener
	testenv.Eventually(t, "listening on "+address, func() (err error) {
		listener, err = net.Listen("tcp", address)
		return err
	})
	creds := insecure.NewCredentials()
	if config != nil {
		creds = credentials.NewTLS(config)
	}
	server := grpc.NewServer(grpc.Creds(creds), grpc.WaitForHandlers(true))
	securityv1.RegisterIstioCertificateServiceServer(server, a)
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) })
	stop = sync.OnceFunc(func() { server.Stop(); serving.Wait() })
	t.Cleanup(stop)
	return listener.Addr().String(), stop
}

func caConfig(address string) CAConfig {
	return CAConfig{
		Address: address, CAServer: CAServer{Plaintext: true}, TrustDomain: "cluster.local", Namespace: "default", ServiceAccount: "reviews",
		MinRetry: 5 * time.Millisecond, MaxRetry: 50 * time.Millisecond,
	}
}

func newSource(t *testing.T, config CAConfig) *CASource {
	t.Helper()
	if config.Logger == nil {
		config.Logger, _ = newLogger(t)
	}
	source, err := NewCASource(config)
	if err != nil {
		t.Fatal(err)
	}
	return source
}

// runSource runs a source or server until the test ends.
func runSource(t *testing.T, part interface{ Run(context.Context) error }) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	result := make(chan error, 1)
	go func() { result <- part.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-result; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

func startServer(t *testing.T, config Config) *Server {
	t.Helper()
	if config.Socket == "" {
		config.Socket = filepath.Join(t.TempDir(), "s")
	}
	if config.Logger == nil {
		config.Logger, _ = newLogger(t)
	}
	if config.Debounce == 0 {
		config.Debounce = 5 * time.Millisecond
	}
	server, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	runSource(t, server)
	return server
}

func dialServer(t *testing.T, s *Server) *grpc.ClientConn {
	t.Helper()
	testenv.Eventually(t, "the server listens", func() error {
		c, err := net.Dial("unix", s.config.Socket)
		if err == nil {
			_ = c.Close()
		}
		return err
	})
	conn, err := grpc.NewClient("unix:"+s.config.Socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// nextSerial waits for a certificate with a serial number other than not, and returns its serial number.
func nextSerial(t *testing.T, source Source, not string) string {
	t.Helper()
	var serial string
	testenv.Eventually(t, "a new certificate", func() error {
		leaf := source.Current().Leaf
		if leaf == nil || leaf.SerialNumber.String() == not {
			_, reason := source.Health()
			return errors.New(reason)
		}
		serial = leaf.SerialNumber.String()
		return nil
	})
	return serial
}

func write(t *testing.T, file string, content []byte) {
	t.Helper()
	if err := os.WriteFile(file+".new", content, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(file+".new", file); err != nil {
		t.Fatal(err)
	}
}

func mkdir(t *testing.T, dir string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
}

func mustParse(t *testing.T, id string) *url.URL {
	t.Helper()
	u, err := url.Parse(id)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// fakeClock changes only when the test advances it.
type fakeClock struct {
	mu      sync.Mutex
	now     time.Time
	waiters []waiter
}

type waiter struct {
	at time.Time
	ch chan time.Time
}

func newFakeClock() *fakeClock { return &fakeClock{now: time.Now()} }

func (c *fakeClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *fakeClock) NewTimer(d time.Duration) <-chan time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	ch := make(chan time.Time, 1)
	c.waiters = append(c.waiters, waiter{c.now.Add(d), ch})
	return ch
}

// advance advances the clock and fires the elapsed timers.
func (c *fakeClock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
	var left []waiter
	for _, w := range c.waiters {
		if w.at.After(c.now) {
			left = append(left, w)
			continue
		}
		w.ch <- c.now
	}
	c.waiters = left
}

// hasWaiters reports whether a timer is pending.
func (c *fakeClock) hasWaiters() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.waiters) > 0
}

// jump sets the clock without firing timers, as after a suspension or a correction of the system clock.
func (c *fakeClock) jump(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
	for i := range c.waiters {
		c.waiters[i].at = c.waiters[i].at.Add(d)
	}
}

// advanceToRotation advances the clock in steps of a second until the certificate is replaced.
func advanceToRotation(t *testing.T, clock *fakeClock, source Source, not string) (serial string) {
	t.Helper()
	testenv.Eventually(t, "a new certificate", func() error {
		clock.advance(time.Second)
		if serial = source.Current().Leaf.SerialNumber.String(); serial == not {
			return errors.New("still the old one")
		}
		return nil
	})
	return serial
}
