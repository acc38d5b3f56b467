package sds

import (
	"context"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	secretv3 "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	"github.com/spiffe/go-spiffe/v2/proto/spiffe/workload"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/pilotfish-mesh/pilotfish/internal/envoytest"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
	"github.com/pilotfish-mesh/pilotfish/internal/testpki"
)

// fakeSPIRE imitates the socket of SPIRE's agent. It serves the Workload API, and SDS with these properties: only SotW;
// a new version with every update; separate trust domains even if there is only one; the stream ends with the first
// name that the workload may not use. The tests do not use a real SPIRE, because it was not available.
type fakeSPIRE struct {
	*workloadAPI
	secretv3.UnimplementedSecretDiscoveryServiceServer
}

func (s *fakeSPIRE) register(server *grpc.Server) {
	s.workloadAPI.register(server)
	secretv3.RegisterSecretDiscoveryServiceServer(server, s)
}

func (s *fakeSPIRE) StreamSecrets(stream grpc.BidiStreamingServer[discoveryv3.DiscoveryRequest, discoveryv3.DiscoveryResponse]) error {
	requests := make(chan *discoveryv3.DiscoveryRequest)
	go func() {
		defer close(requests)
		for {
			r, err := stream.Recv()
			if err != nil {
				return
			}
			select {
			case requests <- r:
			case <-stream.Context().Done():
				return
			}
		}
	}()
	var subscribed []string
	nonce := ""
	for version := 1; ; version++ {
		s.mu.Lock()
		current, changes := s.current, s.changes
		s.mu.Unlock()
		for waiting := true; waiting; {
			select {
			case r, ok := <-requests:
				if !ok {
					return nil
				}
				if nonce != "" && r.ResponseNonce != nonce || slices.Equal(subscribed, r.ResourceNames) {
					continue
				}
				subscribed, waiting = r.ResourceNames, false
			case <-changes:
				waiting = subscribed == nil
				s.mu.Lock()
				current, changes = s.current, s.changes
				s.mu.Unlock()
			}
		}
		resources, err := spireSecrets(current, subscribed)
		if err != nil {
			return err
		}
		nonce = hex.EncodeToString([]byte(fmt.Sprint(rand.Uint32())))
		if err := stream.Send(&discoveryv3.DiscoveryResponse{TypeUrl: secretType, VersionInfo: fmt.Sprint(version), Nonce: nonce, Resources: resources}); err != nil {
			return err
		}
	}
}

// spireSecrets returns secrets with the default names of SPIRE's configuration.
func spireSecrets(r *workload.X509SVIDResponse, names []string) (packed []*anypb.Any, err error) {
	own := r.Svids[0]
	domain, _ := trustDomain("spiffe://" + strings.Split(own.SpiffeId, "/")[2])
	domains := map[string][]byte{domain: pemOf(own.Bundle)}
	for _, name := range names {
		made := &tlsv3.Secret{Name: name}
		switch name {
		case DefaultName, own.SpiffeId:
			made.Type = &tlsv3.Secret_TlsCertificate{TlsCertificate: &tlsv3.TlsCertificate{
				CertificateChain: inlineBytes(pemOf(own.X509Svid)), PrivateKey: inlineBytes(pemKey(own.X509SvidKey))}}
		case "ALL", RootName:
			for id, bundle := range r.FederatedBundles {
				if name == "ALL" {
					domains[strings.TrimPrefix(id, "spiffe://")] = pemOf(bundle)
				}
			}
			validator, err := newDomainValidator(domains)
			if err != nil {
				return nil, err
			}
			made.Type = &tlsv3.Secret_ValidationContext{ValidationContext: &tlsv3.CertificateValidationContext{CustomValidatorConfig: validator}}
		default:
			return nil, status.Errorf(codes.InvalidArgument, "workload is not authorized for the requested identities [%q]", name)
		}
		one, err := anypb.New(made)
		if err != nil {
			return nil, err
		}
		packed = append(packed, one)
	}
	return packed, nil
}

func pemKey(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}

func pemOf(der []byte) []byte {
	certs, _ := x509.ParseCertificates(der)
	return encodeCertificates(certs)
}

func TestEnvoyWorksWithSPIREStyleSDSSocket(t *testing.T) {
	for _, version := range []string{testenv.EnvoyVersion, testenv.OldEnvoyVersion} {
		for _, roots := range []string{RootName, "ALL"} {
			t.Run(version+" "+roots, func(t *testing.T) { t.Parallel(); testSPIRESocket(t, version, roots) })
		}
	}
}

func testSPIRESocket(t *testing.T, version, roots string) {
	const own, foreign = "spiffe://cluster.local/ns/default/sa/productpage", "spiffe://other.example/ns/default/sa/productpage"
	dir, root, other := t.TempDir(), testpki.New(t, "root"), testpki.New(t, "other")
	spire := &fakeSPIRE{workloadAPI: newWorkloadAPI()}
	renew := func() (serial string) {
		one := newSVID(t, root, identity)
		spire.set(&workload.X509SVIDResponse{Svids: []*workload.X509SVID{one}, FederatedBundles: map[string][]byte{"spiffe://other.example": other.Cert.Raw}})
		certs, err := x509.ParseCertificates(one.X509Svid)
		if err != nil {
			t.Fatal(err)
		}
		return certs[0].SerialNumber.String()
	}
	first := renew()
	stop := listenUnix(t, dir+"/sds", spire.register)
	if found := ProbeSocket(context.Background(), dir+"/sds"); found != ExternalSDS {
		t.Errorf("found %q", found)
	}
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") }))
	t.Cleanup(backend.Close)
	port := testenv.FreePort(t)
	bootstrap := fmt.Sprintf(envoyBootstrap, port, "GRPC", backend.Listener.Addr().(*net.TCPAddr).Port)
	envoytest.Start(t, testenv.EnvoyOf(t, version), dir, strings.Replace(bootstrap, "name: ROOTCA", "name: "+roots, 1))
	shows := func(what, serial string) {
		t.Helper()
		testenv.Eventually(t, what, func() error {
			return expectSerial(func(client *testpki.Authority) (string, error) { return handshake(t, port, client, root) }, root, serial)
		})
	}
	shows("Envoy serves with the first certificate", first)
	shows("Envoy serves with the second", renew())
	last := renew()
	shows("Envoy serves with the third", last)
	if err := connectAs(t, port, other, foreign); (err == nil) != (roots == "ALL") {
		t.Errorf("the other domain: %v", err)
	}
	if connectAs(t, port, other, own) == nil {
		t.Error("Envoy accepts an identity of its domain from the other domain's CA")
	}

	stop()
	shows("Envoy serves while nobody listens", last)
	if err := connectAs(t, port, root, own); err != nil {
		t.Error(err)
	}
	after := renew()
	listenUnix(t, dir+"/sds", spire.register)
	shows("Envoy serves with what came meanwhile", after)
}

// The same socket serves the Workload API. The agent can be configured to obtain the identity from it.
func TestAgentUsesWorkloadAPIOfSPIREStyleSocket(t *testing.T) {
	dir, root, other := t.TempDir(), testpki.New(t, "root"), testpki.New(t, "other")
	spire := &fakeSPIRE{workloadAPI: newWorkloadAPI()}
	spire.set(&workload.X509SVIDResponse{Svids: []*workload.X509SVID{newSVID(t, root, identity)}, FederatedBundles: map[string][]byte{"spiffe://other.example": other.Cert.Raw}})
	listenUnix(t, dir+"/agent.sock", spire.register)
	source := workloadSource(t, dir+"/agent.sock")
	server := startServer(t, Config{Source: source})
	nextSerial(t, source, "")
	stream := sotwStream(t, server)
	stream.subscribe("", RootName)
	secret := decode(t, stream.next().Resources[0]).GetValidationContext()
	validator := &tlsv3.SPIFFECertValidatorConfig{}
	if err := proto.Unmarshal(secret.GetCustomValidatorConfig().GetTypedConfig().GetValue(), validator); err != nil || len(validator.TrustDomains) != 2 {
		t.Errorf("%v, %v", validator, err)
	}
}
