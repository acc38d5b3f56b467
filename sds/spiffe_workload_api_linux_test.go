package sds

import (
	"context"
	"crypto/tls"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/proto/spiffe/workload"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/pilotfish-mesh/pilotfish/internal/envoytest"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
	"github.com/pilotfish-mesh/pilotfish/internal/testpki"
)

// workloadAPI is a SPIFFE Workload API whose responses the test sets.
type workloadAPI struct {
	workload.UnimplementedSpiffeWorkloadAPIServer
	mu      sync.Mutex
	current *workload.X509SVIDResponse // nil: requests are rejected
	changes chan struct{}
}

func newWorkloadAPI() *workloadAPI { return &workloadAPI{changes: make(chan struct{})} }

func (w *workloadAPI) set(r *workload.X509SVIDResponse) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.current = r
	close(w.changes)
	w.changes = make(chan struct{})
}

func (w *workloadAPI) FetchX509SVID(_ *workload.X509SVIDRequest, stream grpc.ServerStreamingServer[workload.X509SVIDResponse]) error {
	if md, _ := metadata.FromIncomingContext(stream.Context()); len(md.Get("workload.spiffe.io")) == 0 {
		return status.Error(codes.InvalidArgument, "security header missing from request")
	}
	for {
		w.mu.Lock()
		current, changes := w.current, w.changes
		w.mu.Unlock()
		if current == nil {
			return status.Error(codes.PermissionDenied, "no identity issued")
		}
		if err := stream.Send(current); err != nil {
			return err
		}
		select {
		case <-changes:
		case <-stream.Context().Done():
			return nil
		}
	}
}

// listenUnix serves on a unix socket until stop is called or the test ends.
func listenUnix(t *testing.T, path string, register func(*grpc.Server)) (stop func()) {
	t.Helper()
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	register(server)
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) })
	stop = sync.OnceFunc(func() { server.Stop(); serving.Wait() })
	t.Cleanup(stop)
	return stop
}

func (w *workloadAPI) register(s *grpc.Server) { workload.RegisterSpiffeWorkloadAPIServer(s, w) }

// newSVID returns a workload's identity in the API's format.
func newSVID(t testing.TB, a *testpki.Authority, id string) *workload.X509SVID {
	t.Helper()
	cert, key := a.Workload(t, id)
	certBlock, _ := pem.Decode(cert)
	keyBlock, _ := pem.Decode(key)
	return &workload.X509SVID{SpiffeId: id, X509Svid: certBlock.Bytes, X509SvidKey: keyBlock.Bytes, Bundle: a.Cert.Raw}
}

func workloadSource(t *testing.T, socket string) *SPIFFESource {
	t.Helper()
	log, _ := newLogger(t)
	source, err := NewSPIFFESource(SPIFFEConfig{Target: "unix:" + socket, SPIFFEID: identity, Logger: log,
		MinRetry: 5 * time.Millisecond, MaxRetry: 50 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	return source
}

func TestWorkloadAPIUpdatesAreApplied(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "agent.sock")
	api, root := newWorkloadAPI(), testpki.New(t, "root")
	stop := listenUnix(t, socket, api.register)
	source := workloadSource(t, socket)
	server := startServer(t, Config{Source: source})
	expect := func(ok bool, part string) {
		t.Helper()
		testenv.Eventually(t, "the reason contains "+part, func() error {
			if now, reason := server.Health(); now != ok || !strings.Contains(reason, part) {
				return fmt.Errorf("%v, %q", now, reason)
			}
			return nil
		})
	}
	expect(false, "no identity issued")
	api.set(&workload.X509SVIDResponse{Svids: []*workload.X509SVID{newSVID(t, root, "spiffe://cluster.local/other"), newSVID(t, root, identity)}})
	first := nextSerial(t, source, "")
	if id := source.Current().Leaf.URIs[0].String(); id != identity {
		t.Errorf("selected %s of several identities", id)
	}
	stream := sotwStream(t, server)
	stream.subscribe("", DefaultName, RootName)
	sent := stream.next()
	stream.subscribe(sent.Nonce, DefaultName, RootName)

	bad := newSVID(t, root, identity)
	bad.Bundle = testpki.New(t, "stranger").Cert.Raw
	for name, r := range map[string]*workload.X509SVIDResponse{
		"no identity":         {},
		"does not chain to a": {Svids: []*workload.X509SVID{bad}},
		"the certificate":     {Svids: []*workload.X509SVID{{SpiffeId: identity, X509Svid: []byte("garbage")}}},
		"not a trust domain": {Svids: []*workload.X509SVID{newSVID(t, root, identity)},
			FederatedBundles: map[string][]byte{"https://x": root.Cert.Raw}},
	} {
		api.set(r)
		expect(true, name)
	}
	if serial := source.Current().Leaf.SerialNumber.String(); serial != first {
		t.Error("the last valid identity is not served")
	}
	api.set(&workload.X509SVIDResponse{Svids: []*workload.X509SVID{newSVID(t, root, identity)}})
	if got := resourceNames(t, stream.next()); got != DefaultName {
		t.Errorf("pushed %s", got)
	}
	second := nextSerial(t, source, first)
	stop()
	expect(true, "Unavailable")
	api.set(&workload.X509SVIDResponse{Svids: []*workload.X509SVID{newSVID(t, root, identity)}})
	listenUnix(t, socket, api.register)
	nextSerial(t, source, second)
	expect(true, "")
}

// The CA of one trust domain cannot issue identities of another.
func TestEnvoyVerifiesEachTrustDomainWithItsOwnRoots(t *testing.T) {
	for _, version := range testenv.EnvoyVersions() {
		t.Run(version, func(t *testing.T) { t.Parallel(); testFederation(t, version) })
	}
}

func testFederation(t *testing.T, version string) {
	dir := t.TempDir()
	api, root, other := newWorkloadAPI(), testpki.New(t, "root"), testpki.New(t, "other")
	listenUnix(t, dir+"/agent.sock", api.register)
	api.set(&workload.X509SVIDResponse{Svids: []*workload.X509SVID{newSVID(t, root, identity)}})
	source := workloadSource(t, dir+"/agent.sock")
	startServer(t, Config{Socket: dir + "/sds", Source: source})
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") }))
	t.Cleanup(backend.Close)
	port := testenv.FreePort(t)
	envoytest.Start(t, testenv.EnvoyOf(t, version), dir, fmt.Sprintf(envoyBootstrap, port, "DELTA_GRPC", backend.Listener.Addr().(*net.TCPAddr).Port))
	visit := func(a *testpki.Authority, id string) error { return connectAs(t, port, a, id) }
	const own, foreign = "spiffe://cluster.local/ns/default/sa/productpage", "spiffe://other.example/ns/default/sa/productpage"
	testenv.Eventually(t, "Envoy serves its own domain", func() error { return visit(root, own) })
	if visit(other, foreign) == nil {
		t.Error("Envoy accepts the other domain before its roots are known")
	}
	api.set(&workload.X509SVIDResponse{Svids: []*workload.X509SVID{newSVID(t, root, identity)},
		FederatedBundles: map[string][]byte{"spiffe://other.example": other.Cert.Raw}})
	testenv.Eventually(t, "Envoy accepts the other domain", func() error { return visit(other, foreign) })
	if err := visit(root, own); err != nil {
		t.Error(err)
	}
	if visit(other, own) == nil {
		t.Error("Envoy accepts an identity of its domain from the other domain's CA")
	}
	if visit(root, foreign) == nil {
		t.Error("Envoy accepts an identity of the other domain from its own CA")
	}
}

// connectAs sends a request to Envoy with a certificate for the SPIFFE ID id.
func connectAs(t *testing.T, port int, a *testpki.Authority, id string) error {
	t.Helper()
	cert, key := a.Workload(t, id)
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	return connectWith(port, pair)
}

func connectWith(port int, pair tls.Certificate) error {
	transport := &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{Certificates: []tls.Certificate{pair}, InsecureSkipVerify: true}}
	client := http.Client{Timeout: 5 * time.Second, Transport: transport}
	response, err := client.Get(fmt.Sprintf("https://127.0.0.1:%d/", port))
	if err != nil {
		return err
	}
	return errors.Join(readAll(response.Body), response.Body.Close())
}

func readAll(r io.Reader) error {
	_, err := io.Copy(io.Discard, r)
	return err
}

func TestProbeSocketDetectsTheServer(t *testing.T) {
	dir := t.TempDir()
	api := newWorkloadAPI()
	listenUnix(t, dir+"/workload", api.register)
	listenUnix(t, dir+"/neither", func(*grpc.Server) {})
	stop := listenUnix(t, dir+"/dead", func(*grpc.Server) {})
	stop()
	startServer(t, Config{Socket: dir + "/sds", Source: newFakeSource(newMaterial(t, testpki.New(t, "root")))})
	waiting := startServer(t, Config{Socket: dir + "/waiting", Source: newFakeSource(Material{})})
	dialServer(t, waiting)
	silent, err := net.Listen("unix", dir+"/silent")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = silent.Close() })
	write(t, dir+"/file", []byte("x"))
	for name, want := range map[string]ExternalServer{
		"workload": ExternalWorkloadAPI, "sds": ExternalSDS, "waiting": ExternalSDS, "neither": ExternalSDS, "silent": ExternalSDS,
		"dead": ExternalNone, "missing": ExternalNone, "file": ExternalNone,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := ProbeSocket(context.Background(), filepath.Join(dir, name)); got != want {
				t.Errorf("found %q, want %q", got, want)
			}
		})
	}
}

// FuzzSVIDs parses arbitrary responses of a Workload API. An accepted response contains an identity and roots.
func FuzzSVIDs(f *testing.F) {
	root := testpki.New(f, "root")
	for _, r := range []*workload.X509SVIDResponse{
		{Svids: []*workload.X509SVID{newSVID(f, root, identity)}},
		{Svids: []*workload.X509SVID{newSVID(f, root, identity)}, FederatedBundles: map[string][]byte{"spiffe://x": root.Cert.Raw}},
		{},
	} {
		seed, err := proto.Marshal(r)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(seed)
	}
	source, err := NewSPIFFESource(SPIFFEConfig{Target: "unix:/x", SPIFFEID: identity})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, message []byte) {
		var r workload.X509SVIDResponse
		if proto.Unmarshal(message, &r) != nil {
			return
		}
		m, err := source.parseResponse(&r)
		if err == nil && (m.Leaf == nil || len(m.Roots) == 0 || len(m.Key) == 0) {
			t.Errorf("accepted: %v", m)
		}
	})
}

// FuzzRevocations parses arbitrary text as CRLs.
func FuzzRevocations(f *testing.F) {
	root := testpki.New(f, "root")
	f.Add(revoke(f, root), root.PEM())
	f.Add([]byte("-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n"), []byte{})
	f.Fuzz(func(t *testing.T, text, roots []byte) {
		lists, err := parseRevocations(text)
		if (err == nil) != (len(lists) > 0) {
			t.Errorf("%d lists and %v", len(lists), err)
		}
		_, _ = revocations{text: text, lists: lists}.textForRoots(roots)
	})
}
