package agent

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	secretv3 "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	"github.com/spiffe/go-spiffe/v2/proto/spiffe/workload"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
	meshv1 "istio.io/api/mesh/v1alpha1"

	"github.com/pilotfish-mesh/pilotfish/internal/testpki"
	"github.com/pilotfish-mesh/pilotfish/sds"
)

const (
	shopIdentity     = "spiffe://cluster.local/ns/books/sa/shop"
	externalIdentity = "spiffe://example.org/shop"
)

// certReport returns the report of an agent.
func certReport(s *agentSetup) (r CertificateReport, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	err = DialControl(filepath.Join(s.dir, "etc/istio/proxy")).Call(ctx, http.MethodGet, "/certificates", nil, &r)
	return r, err
}

func TestCertShowsServedCertificates(t *testing.T) {
	t.Parallel()
	s := newSetup(t, "127.155.1.1")
	s.cp.start(t)
	s.env = append(s.env, "OUTPUT_CERTS=./out/certs")
	r := s.start(t)
	r.eventually("Envoy shows its identity", func() error { return checkIdentity(s, shopIdentity) })
	report, err := certReport(s)
	if err != nil {
		t.Fatal(err)
	}
	own := report.Certificates[0]
	if !report.OK || own.Name != "default" || own.SPIFFEID != shopIdentity || own.Serial == "" || own.NextRotation.Before(own.NotBefore) ||
		own.Source != "CA "+s.cp.address || len(report.Certificates) != 2 || report.Certificates[1].Name != "ROOTCA" {
		t.Errorf("the report is %+v", report)
	}
	table, code := r.command("cert")
	if code != 0 || !strings.Contains(table, shopIdentity) || !strings.Contains(table, own.Serial) || !strings.Contains(table, own.NextRotation.UTC().Format(time.RFC3339)) {
		t.Errorf("code %d:\n%s", code, table)
	}
	if strings.Contains(table, "PRIVATE") {
		t.Error("the key is shown")
	}
	r.eventually("the certificate is written", func() error {
		for _, name := range []string{"cert-chain.pem", "key.pem", "root-cert.pem"} {
			info, err := os.Stat(filepath.Join(s.dir, "out/certs", name))
			if err != nil || info.Mode() != 0o600 {
				return fmt.Errorf("%s: %v, %w", name, info, err)
			}
		}
		return nil
	})
	if out, code := r.command("cert", "-o", "xml"); code != 2 {
		t.Errorf("an unknown format: code %d, %s", code, out)
	}
	if out, code := r.command("cert", "--config-path", t.TempDir()); code != 1 || !strings.Contains(out, "no agent responds") {
		t.Errorf("without an agent: code %d, %s", code, out)
	}
}

// checkIdentity checks the identity in Envoy's server certificate.
func checkIdentity(s *agentSetup, want string) error {
	conn, id, err := dialProxy(s.address)
	if err != nil {
		return err
	}
	_ = conn.Close()
	if id != want {
		return fmt.Errorf("Envoy is %s", id)
	}
	return nil
}

// writeExternalIdentity writes the files of an identity that an external server serves.
func writeExternalIdentity(t *testing.T, dir string) sds.FileConfig {
	t.Helper()
	root := testpki.New(t, "outside")
	cert, key := root.Workload(t, externalIdentity)
	files := sds.IdentityFiles(dir)
	for file, text := range map[string][]byte{files.CertFile: cert, files.KeyFile: key, files.RootFile: root.PEM()} {
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return files
}

func TestExternalCertificateSocketIsUsed(t *testing.T) {
	t.Parallel()
	s := newSetup(t, "127.155.2.1")
	s.cp.start(t)
	certs := t.TempDir()
	source, err := sds.NewFileSource(writeExternalIdentity(t, certs))
	if err != nil {
		t.Fatal(err)
	}
	// The agent waits for a socket with a non-default name.
	socket := filepath.Join(s.dir, "var/run/secrets/workload-spiffe-uds/spire")
	s.env = append(s.env, "WORKLOAD_IDENTITY_SOCKET_FILE=spire")
	r := s.start(t)
	other, err := sds.New(sds.Config{Socket: socket, Source: source})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- other.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-ended })
	r.eventually("Envoy presents the external server's identity", func() error { return checkIdentity(s, externalIdentity) })
	r.eventually("the proxy is ready", func() error {
		if code, text, err := r.http("GET", "15020/healthz/ready"); err != nil || code != 200 {
			return fmt.Errorf("%d %s %w", code, text, err)
		}
		return nil
	})
	report, err := certReport(s)
	if err != nil || !strings.HasSuffix(report.ExternalSocket, "/workload-spiffe-uds/spire") || len(report.Certificates) != 0 {
		t.Errorf("the report is %+v, %v", report, err)
	}
	if v := s.cp.node.Load().GetMetadata().GetFields()["file-credential"].GetStringValue(); v != "true" {
		t.Errorf("the control plane receives file-credential %q", v)
	}
	secrets, err := fetch(t, filepath.Join(s.dir, "var/run/secrets/credential-uds/files-socket"), "file-root:"+filepath.Join(certs, "root-cert.pem"))
	if err != nil || len(secrets.GetResources()) != 1 {
		t.Errorf("secrets from files: %v, %v", secrets, err)
	}
	if _, err := fetch(t, filepath.Join(s.dir, "var/run/secrets/credential-uds/files-socket"), "default"); err == nil {
		t.Error("the agent has a second identity in addition to the external one")
	}
}

func fetch(t *testing.T, socket, name string) (*discoveryv3.DiscoveryResponse, error) {
	t.Helper()
	conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	return secretv3.NewSecretDiscoveryServiceClient(conn).FetchSecrets(t.Context(), &discoveryv3.DiscoveryRequest{ResourceNames: []string{name}})
}

// spire is a Workload API with a constant response.
type spire struct {
	workload.UnimplementedSpiffeWorkloadAPIServer
	answer *workload.X509SVIDResponse
}

func (s *spire) FetchX509SVID(_ *workload.X509SVIDRequest, stream grpc.ServerStreamingServer[workload.X509SVIDResponse]) error {
	err := stream.Send(s.answer)
	<-stream.Context().Done()
	return err
}

func svidOf(t *testing.T, root *testpki.Authority) *workload.X509SVID {
	t.Helper()
	cert, key := root.Workload(t, externalIdentity)
	certBlock, _ := pem.Decode(cert)
	keyBlock, _ := pem.Decode(key)
	return &workload.X509SVID{SpiffeId: externalIdentity, X509Svid: certBlock.Bytes, X509SvidKey: keyBlock.Bytes, Bundle: root.Cert.Raw}
}

func TestIdentityComesFromTheWorkloadAPI(t *testing.T) {
	t.Parallel()
	s := newSetup(t, "127.155.3.1")
	s.cp.start(t)
	root := testpki.New(t, "spire")
	socket := filepath.Join(t.TempDir(), "agent.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	workload.RegisterSpiffeWorkloadAPIServer(server, &spire{answer: &workload.X509SVIDResponse{Svids: []*workload.X509SVID{svidOf(t, root)}}})
	served := make(chan struct{})
	go func() { defer close(served); _ = server.Serve(listener) }()
	t.Cleanup(func() { server.Stop(); <-served })
	s.env = append(s.env, "SPIFFE_ENDPOINT_SOCKET=unix://"+socket)
	r := s.start(t)
	r.eventually("Envoy presents the Workload API's identity", func() error { return checkIdentity(s, externalIdentity) })
	report, err := certReport(s)
	if err != nil || !report.OK || report.Certificates[0].Source != "SPIFFE Workload API unix:"+socket {
		t.Errorf("the report is %+v, %v", report, err)
	}
}

func TestTrustBundlesComeFromProxyConfigAndTheControlPlane(t *testing.T) {
	t.Parallel()
	s := newSetup(t, "127.155.4.1")
	given, pushed := testpki.New(t, "given"), testpki.New(t, "pushed")
	own, err := proto.Marshal(&meshv1.ProxyConfig{CaCertificatesPem: []string{string(pushed.PEM())}})
	if err != nil {
		t.Fatal(err)
	}
	s.cp.trust = [][]byte{own}
	s.cp.start(t)
	s.env = append(s.env, "PROXY_CONFIG_XDS_AGENT=true", "PROXY_CONFIG="+fmt.Sprintf(`{discoveryAddress: "%s", concurrency: 1, caCertificatesPem: [%q]}`, s.cp.address, given.PEM()))
	r := s.start(t)
	r.eventually("all roots are trusted", func() error {
		report, err := certReport(s)
		subjects := fmt.Sprint(report.Certificates)
		for _, name := range []string{"CN=test root", "CN=given", "CN=pushed"} {
			if !strings.Contains(subjects, name) {
				err = errors.Join(err, errors.New(name+" is missing"))
			}
		}
		return err
	})
}

func TestMetadataServerTokenIsUsedAndExchanged(t *testing.T) {
	t.Parallel()
	own := unsignedToken("machine", "1")
	cloud := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Metadata-Flavor") != "Google" || r.URL.Path != "/computeMetadata/v1/instance/service-accounts/default/identity" || r.URL.Query().Get("audience") != "cluster.local" {
			t.Errorf("requested %s", r.URL)
		}
		_, _ = io.WriteString(w, own)
	}))
	defer cloud.Close()
	exchange := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"access_token":"access","token_type":"Bearer","expires_in":3600}`)
	}))
	defer exchange.Close()
	s := newSetup(t, "127.163.40.1")
	s.cp.token.Store(&own)
	s.cp.start(t)
	if err := os.Remove(filepath.Join(s.dir, "var/run/secrets/tokens/istio-token")); err != nil {
		t.Fatal(err)
	}
	s.env = append(s.env, "CREDENTIAL_FETCHER_TYPE=GoogleComputeEngine", "GCE_METADATA_HOST="+strings.TrimPrefix(cloud.URL, "http://"),
		"TOKEN_EXCHANGE_URL="+exchange.URL)
	r := s.start(t)
	r.waitReady()
	for token, status := range map[string]int{own: http.StatusOK, unsignedToken("another", "1"): http.StatusBadRequest} {
		response, err := http.PostForm("http://"+s.address+":15463/token", url.Values{
			"grant_type":    {"urn:ietf:params:oauth:grant-type:token-exchange"},
			"subject_token": {token}, "subject_token_type": {"urn:ietf:params:oauth:token-type:jwt"},
		})
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		if response.StatusCode != status {
			t.Errorf("status %d, want %d", response.StatusCode, status)
		}
	}
	if strings.Contains(r.out.String(), own) {
		t.Error("the token is in the log")
	}
}
