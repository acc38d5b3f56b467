package sds

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	secretv3 "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
	"github.com/pilotfish-mesh/pilotfish/internal/testpki"
)

// fakeSource is a Source whose identity the test sets.
type fakeSource struct {
	subscribers
	current atomic.Pointer[Material]
}

func newFakeSource(m Material) *fakeSource {
	f := &fakeSource{}
	f.set(m)
	return f
}

func (f *fakeSource) set(m Material) {
	f.current.Store(&m)
	f.notify()
}

func (f *fakeSource) Current() Material             { return *f.current.Load() }
func (f *fakeSource) Subscribe(notify func())       { f.add(notify) }
func (f *fakeSource) Run(ctx context.Context) error { <-ctx.Done(); return nil }
func (f *fakeSource) Health() (bool, string)        { return true, "" }
func (f *fakeSource) NextRotation() time.Time       { return time.Time{} }
func (f *fakeSource) Name() string                  { return "test" }

func newMaterial(t *testing.T, a *testpki.Authority) Material {
	t.Helper()
	cert, key := a.Workload(t, identity)
	leaf, err := parseKeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	return Material{Chain: cert, Key: key, Roots: a.PEM(), Leaf: leaf}
}

func decode(t *testing.T, body *anypb.Any) *tlsv3.Secret {
	t.Helper()
	var s tlsv3.Secret
	if err := body.UnmarshalTo(&s); err != nil {
		t.Fatal(err)
	}
	return &s
}

func resourceNames(t *testing.T, r *discoveryv3.DiscoveryResponse) string {
	t.Helper()
	var out []string
	for _, body := range r.Resources {
		out = append(out, decode(t, body).Name)
	}
	return strings.Join(out, " ")
}

type sotwClient struct {
	t *testing.T
	secretv3.SecretDiscoveryService_StreamSecretsClient
}

func sotwStream(t *testing.T, s *Server) sotwClient {
	t.Helper()
	stream, err := secretv3.NewSecretDiscoveryServiceClient(dialServer(t, s)).StreamSecrets(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return sotwClient{t, stream}
}

func (c sotwClient) subscribe(nonce string, names ...string) {
	c.t.Helper()
	if err := c.Send(&discoveryv3.DiscoveryRequest{TypeUrl: secretType, ResponseNonce: nonce, ResourceNames: names}); err != nil {
		c.t.Fatal(err)
	}
}

func (c sotwClient) next() *discoveryv3.DiscoveryResponse {
	c.t.Helper()
	r, err := c.Recv()
	if err != nil {
		c.t.Fatal(err)
	}
	return r
}

func TestOnlyChangedSecretIsPushed(t *testing.T) {
	root := testpki.New(t, "root")
	source := newFakeSource(newMaterial(t, root))
	server := startServer(t, Config{Source: source})
	stream := sotwStream(t, server)
	stream.subscribe("", RootName, DefaultName)
	first := stream.next()
	if got := resourceNames(t, first); got != "ROOTCA default" {
		t.Fatalf("sent %s", got)
	}
	stream.subscribe(first.Nonce, RootName, DefaultName)

	renewed := newMaterial(t, root)
	source.set(renewed)
	second := stream.next()
	if got := resourceNames(t, second); got != "default" {
		t.Errorf("sent %s after a change of the certificate", got)
	}
	if got := decode(t, second.Resources[0]).GetTlsCertificate().GetCertificateChain().GetInlineBytes(); !bytes.Equal(got, renewed.Chain) {
		t.Error("the old certificate was pushed")
	}
	stream.subscribe(second.Nonce, RootName, DefaultName)
	renewed.Roots = testpki.New(t, "new").PEM()
	source.set(renewed)
	if got := resourceNames(t, stream.next()); got != "ROOTCA" {
		t.Errorf("sent %s after a change of the roots", got)
	}
}

func TestSecretIsSentWhenItBecomesAvailable(t *testing.T) {
	source := newFakeSource(Material{})
	server := startServer(t, Config{Source: source})
	stream := sotwStream(t, server)
	stream.subscribe("", DefaultName)
	source.set(newMaterial(t, testpki.New(t, "root")))
	if got := resourceNames(t, stream.next()); got != DefaultName {
		t.Errorf("sent %s", got)
	}
}

func TestUnknownNameDoesNotAffectOthers(t *testing.T) {
	server := startServer(t, Config{Source: newFakeSource(newMaterial(t, testpki.New(t, "root")))})
	stream := sotwStream(t, server)
	stream.subscribe("", "kubernetes://secret", "file-cert:only-one", DefaultName)
	if got := resourceNames(t, stream.next()); got != DefaultName {
		t.Errorf("sent %s", got)
	}

	delta, err := secretv3.NewSecretDiscoveryServiceClient(dialServer(t, server)).DeltaSecrets(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := delta.Send(&discoveryv3.DeltaDiscoveryRequest{ResourceNamesSubscribe: []string{"kubernetes://secret", DefaultName}}); err != nil {
		t.Fatal(err)
	}
	r, err := delta.Recv()
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Resources) != 1 || len(r.RemovedResources) != 1 || r.RemovedResources[0] != "kubernetes://secret" {
		t.Errorf("sent %v, removed %v", r.Resources, r.RemovedResources)
	}
}

func TestRejectedSecretIsNotSentAgainBeforeItChanges(t *testing.T) {
	root := testpki.New(t, "root")
	source := newFakeSource(newMaterial(t, root))
	server := startServer(t, Config{Source: source})
	stream := sotwStream(t, server)
	stream.subscribe("", DefaultName)
	first := stream.next()
	if err := stream.Send(&discoveryv3.DiscoveryRequest{TypeUrl: secretType, ResponseNonce: first.Nonce, ResourceNames: []string{DefaultName},
		ErrorDetail: &rpcstatus.Status{Message: "no"}}); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, "the rejection is counted", func() error {
		if testutil.ToFloat64(server.metrics.nacks) != 1 {
			return errors.New("not yet")
		}
		return nil
	})
	source.set(newMaterial(t, root))
	if second := stream.next(); second.VersionInfo == first.VersionInfo {
		t.Error("the rejected secret was sent again")
	}
}

func TestDeltaSendsOnlyChangesAfterReconnect(t *testing.T) {
	root := testpki.New(t, "root")
	source := newFakeSource(newMaterial(t, root))
	server := startServer(t, Config{Source: source})
	subscribe := func(known map[string]string) *discoveryv3.DeltaDiscoveryResponse {
		t.Helper()
		stream, err := secretv3.NewSecretDiscoveryServiceClient(dialServer(t, server)).DeltaSecrets(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: secretType, ResourceNamesSubscribe: []string{DefaultName, RootName},
			InitialResourceVersions: known}); err != nil {
			t.Fatal(err)
		}
		r, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	known := make(map[string]string)
	for _, r := range subscribe(nil).Resources {
		known[r.Name] = r.Version
	}
	if len(known) != 2 {
		t.Fatalf("sent %v", known)
	}
	source.set(newMaterial(t, root))
	if again := subscribe(known).Resources; len(again) != 1 || again[0].Name != DefaultName {
		t.Errorf("sent %d secrets after a reconnect, want the changed one", len(again))
	}
}

func TestOtherTypesAreRefused(t *testing.T) {
	server := startServer(t, Config{Source: newFakeSource(Material{})})
	stream := sotwStream(t, server)
	if err := stream.Send(&discoveryv3.DiscoveryRequest{TypeUrl: "type.googleapis.com/envoy.config.cluster.v3.Cluster"}); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err == nil {
		t.Error("the server accepts requests for clusters")
	}
}

func TestOtherUsersCannotConnect(t *testing.T) {
	log, output := newLogger(t)
	server := startServer(t, Config{Source: newFakeSource(newMaterial(t, testpki.New(t, "root"))), Logger: log,
		AllowedUIDs: []uint32{uint32(os.Geteuid()) + 4242}})
	stream, err := secretv3.NewSecretDiscoveryServiceClient(dialServer(t, server)).StreamSecrets(t.Context())
	if err == nil {
		_, err = stream.Recv()
	}
	if err == nil {
		t.Error("a user that is not allowed was accepted")
	}
	if !strings.Contains(output.String(), fmt.Sprintf("of user %d may not connect", os.Geteuid())) {
		t.Error("the rejected connection is not logged")
	}
}

func TestFilePairsAreServedAndWatched(t *testing.T) {
	root, dir := testpki.New(t, "root"), t.TempDir()
	cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	first, second := newMaterial(t, root), newMaterial(t, root)
	write(t, cert, first.Chain)
	write(t, key, first.Key)
	server := startServer(t, Config{})
	stream := sotwStream(t, server)
	name := "file-cert:" + cert + "~" + key
	stream.subscribe("", name)
	sent := stream.next()
	stream.subscribe(sent.Nonce, name)

	write(t, cert, second.Chain) // now the certificate and the key do not match
	testenv.Eventually(t, "the mismatch is reported", func() error {
		if ok, reason := server.Health(); !ok || !strings.Contains(reason, "does not match") {
			return fmt.Errorf("%v, %q", ok, reason)
		}
		return nil
	})
	write(t, key, second.Key)
	pair := decode(t, stream.next().Resources[0]).GetTlsCertificate()
	if !bytes.Equal(pair.CertificateChain.GetInlineBytes(), second.Chain) || !bytes.Equal(pair.PrivateKey.GetInlineBytes(), second.Key) {
		t.Error("the pushed secret is not the new pair")
	}
	if ok, reason := server.Health(); !ok || reason != "" {
		t.Errorf("health = %v, %q", ok, reason)
	}
	if infos := server.Certificates(); len(infos) != 1 || infos[0].Name != name || infos[0].SPIFFEID != identity {
		t.Errorf("certificates = %+v", infos)
	}
}

func TestFileCreatedLaterIsServed(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "not", "yet")
	file := filepath.Join(dir, "ca.pem")
	server := startServer(t, Config{})
	stream := sotwStream(t, server)
	stream.subscribe("", "file-root:"+file)
	testenv.Eventually(t, "the missing file is reported", func() error {
		if _, reason := server.Health(); !strings.Contains(reason, file) {
			return errors.New(reason)
		}
		return nil
	})
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, file, testpki.New(t, "root").PEM())
	if got := resourceNames(t, stream.next()); got != "file-root:"+file {
		t.Errorf("sent %s", got)
	}
}

// Kubernetes updates a mounted secret by renaming a symbolic link in the directory of the files.
func TestKubernetesSecretMountIsWatched(t *testing.T) {
	dir := t.TempDir()
	old, young := testpki.New(t, "old"), testpki.New(t, "young")
	for name, content := range map[string][]byte{"..1": old.PEM(), "..2": young.PEM()} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, name, "ca.pem"), content)
	}
	link := func(target, name string) {
		t.Helper()
		if err := os.Symlink(target, filepath.Join(dir, name+".new")); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(filepath.Join(dir, name+".new"), filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	link("..1", "..data")
	link("..data/ca.pem", "ca.pem")
	server := startServer(t, Config{})
	stream := sotwStream(t, server)
	name := "file-root:" + filepath.Join(dir, "ca.pem")
	stream.subscribe("", name)
	stream.subscribe(stream.next().Nonce, name)
	link("..2", "..data")
	got := decode(t, stream.next().Resources[0]).GetValidationContext().GetTrustedCa().GetInlineBytes()
	if !bytes.Equal(got, young.PEM()) {
		t.Error("the old root was pushed")
	}
}

func TestSystemRootsAreServed(t *testing.T) {
	if _, err := os.Stat(findSystemBundle()); err != nil {
		t.Fatalf("this machine has no bundle of roots: install ca-certificates (%v)", err)
	}
	server := startServer(t, Config{})
	stream := sotwStream(t, server)
	stream.subscribe("", "file-root:system")
	if got := decode(t, stream.next().Resources[0]); len(got.GetValidationContext().GetTrustedCa().GetInlineBytes()) == 0 {
		t.Error("no roots")
	}
}

func TestUnsubscribedFilesAreReleased(t *testing.T) {
	file := filepath.Join(t.TempDir(), "ca.pem")
	write(t, file, testpki.New(t, "root").PEM())
	server := startServer(t, Config{})
	stream := sotwStream(t, server)
	stream.subscribe("", "file-root:"+file)
	stream.next()
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, "the file is released", func() error {
		if n := len(server.Certificates()); n != 0 {
			return fmt.Errorf("%d certificates", n)
		}
		return nil
	})
}

func TestIdentityFilesAreWatched(t *testing.T) {
	dir, root := t.TempDir(), testpki.New(t, "root")
	config := FileConfig{CertFile: dir + "/cert.pem", KeyFile: dir + "/key.pem", RootFile: dir + "/root.pem", Debounce: time.Millisecond}
	source, err := NewFileSource(config)
	if err != nil {
		t.Fatal(err)
	}
	server := startServer(t, Config{Source: source})
	if ok, _ := server.Health(); ok {
		t.Error("healthy without files")
	}
	m := newMaterial(t, root)
	stream := sotwStream(t, server)
	stream.subscribe("", DefaultName)
	write(t, config.KeyFile, m.Key)
	write(t, config.RootFile, m.Roots)
	write(t, config.CertFile, m.Chain)
	stream.next()
	if ok, reason := server.Health(); !ok {
		t.Error(reason)
	}
}

func TestExpiryIsAMetric(t *testing.T) {
	registry := prometheus.NewRegistry()
	clock := newFakeClock()
	m := newMaterial(t, testpki.New(t, "root"))
	startServer(t, Config{Source: newFakeSource(m), Metrics: registry, Clock: clock})
	clock.advance(m.Leaf.NotAfter.Sub(clock.Now()) - time.Minute)
	if left := readExpiryMetric(t, registry); left != 60 {
		t.Errorf("%v s are left", left)
	}
}

// readExpiryMetric returns the metric's value for the identity.
func readExpiryMetric(t *testing.T, registry *prometheus.Registry) float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() != "istio_agent_cert_expiry_seconds" {
			continue
		}
		for _, metric := range family.Metric {
			if metric.Label[0].GetValue() == DefaultName {
				return metric.Gauge.GetValue()
			}
		}
	}
	t.Fatalf("the metric is not in %v", families)
	return 0
}

// FuzzSecretName parses arbitrary names. An accepted name refers to at least one file.
func FuzzSecretName(f *testing.F) {
	for _, seed := range []string{"file-cert:a~b", "file-cert:a~b~c", "file-root:", "file-root:system", "file-root:a~crl:b", "file-root:~crl:", "default", "~"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, name string) {
		parsed, err := parseName(name)
		if err != nil {
			return
		}
		for _, path := range parsed.paths() {
			if path == "" {
				t.Errorf("%q names an empty path", name)
			}
		}
	})
}
