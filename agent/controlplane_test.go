package agent

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"sync/atomic"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	securityv1 "istio.io/api/security/v1alpha1"

	"github.com/pilotfish-mesh/pilotfish/dns"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
	"github.com/pilotfish-mesh/pilotfish/wasm"
)

const (
	clusterType  = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
	listenerType = "type.googleapis.com/envoy.config.listener.v3.Listener"
	healthType   = "type.googleapis.com/istio.v1.HealthInformation"
	testToken    = "a-token"
)

// controlPlane is a minimal control plane for tests. It signs certificates for clients with the token, and sends each
// proxy one listener that serves with the proxy's own certificate.
type controlPlane struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	securityv1.UnimplementedIstioCertificateServiceServer

	address          string
	token            atomic.Pointer[string] // accepted token; nil for testToken
	key              *ecdsa.PrivateKey
	root             *x509.Certificate
	rootPEM          []byte
	tls              tls.Certificate
	listener         *listenerv3.Listener // sent to proxies
	more             []*listenerv3.Listener
	clusters         []*clusterv3.Cluster
	node             atomic.Pointer[corev3.Node]
	filters          map[string]*anypb.Any  // ECDS filters by name
	health           chan string            // application health reported by proxies
	life             time.Duration          // lifetime of certificates
	sendRejected     atomic.Bool            // send a listener that Envoy rejects
	names            atomic.Pointer[[]byte] // the name table; nil for none
	trust            [][]byte               // ProxyConfig messages for the agent
	nameTableResults chan string            // results for the name table: "" or the NACK's message; nil if unused
}

// newControlPlane returns a control plane with an address. It does not listen before start is called.
func newControlPlane(t *testing.T, listen string) *controlPlane {
	t.Helper()
	c := &controlPlane{listener: tlsListener(t, listen), health: make(chan string, 100), life: time.Hour}
	c.key = newKey(t)
	c.root, c.rootPEM = c.sign(t, &x509.Certificate{
		Subject: pkix.Name{CommonName: "test root"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign,
	}, c.key)
	key := newKey(t)
	leaf, _ := c.sign(t, &x509.Certificate{
		Subject: pkix.Name{CommonName: "control plane"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, key)
	c.tls = tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: key}
	c.address = freeAddress(t)
	return c
}

func freeAddress(t *testing.T) string {
	t.Helper()
	return fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t))
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

var serial atomic.Int64

// sign completes and signs a certificate; the root signs itself.
func (c *controlPlane) sign(t *testing.T, template *x509.Certificate, key *ecdsa.PrivateKey) (*x509.Certificate, []byte) {
	t.Helper()
	template.SerialNumber = big.NewInt(serial.Add(1))
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Minute), time.Now().Add(time.Hour)
	parent := c.root
	if parent == nil {
		parent = template
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), c.key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// start serves until the test ends or stop is called.
func (c *controlPlane) start(t *testing.T) (stop func()) {
	t.Helper()
	l, err := net.Listen("tcp", c.address)
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(grpc.Creds(credentials.NewServerTLSFromCert(&c.tls)))
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(s, c)
	securityv1.RegisterIstioCertificateServiceServer(s, c)
	served := make(chan struct{})
	go func() { defer close(served); _ = s.Serve(l) }()
	stop = func() { s.Stop(); <-served }
	t.Cleanup(stop)
	return stop
}

func (c *controlPlane) authorize(ctx context.Context) error {
	md, _ := metadata.FromIncomingContext(ctx)
	want := testToken
	if given := c.token.Load(); given != nil {
		want = *given
	}
	if got := md.Get("authorization"); len(got) != 1 || got[0] != "Bearer "+want {
		return status.Error(codes.Unauthenticated, "no token, or a wrong one")
	}
	return nil
}

// CreateCertificate signs the CSR.
func (c *controlPlane) CreateCertificate(ctx context.Context, r *securityv1.IstioCertificateRequest) (*securityv1.IstioCertificateResponse, error) {
	if err := c.authorize(ctx); err != nil {
		return nil, err
	}
	block, _ := pem.Decode([]byte(r.GetCsr()))
	if block == nil {
		return nil, status.Error(codes.InvalidArgument, "the CSR is not PEM")
	}
	csr, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(serial.Add(1)), URIs: csr.URIs,
		NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(c.life),
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, c.root, csr.PublicKey, c.key)
	if err != nil {
		return nil, err
	}
	leaf := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return &securityv1.IstioCertificateResponse{CertChain: []string{string(leaf), string(c.rootPEM)}}, nil
}

// DeltaAggregatedResources responds to the first request for each resource type.
func (c *controlPlane) DeltaAggregatedResources(s discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	if err := c.authorize(s.Context()); err != nil {
		return err
	}
	for {
		r, err := s.Recv()
		if err != nil {
			return err
		}
		if r.GetNode() != nil {
			c.node.Store(r.GetNode())
		}
		if r.GetTypeUrl() == healthType {
			c.health <- r.GetErrorDetail().GetMessage()
			continue
		}
		if r.GetResponseNonce() != "" {
			if c.nameTableResults != nil && r.GetTypeUrl() == dns.NameTableType {
				c.nameTableResults <- r.GetErrorDetail().GetMessage()
			}
			continue
		}
		response := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: r.GetTypeUrl(), Nonce: r.GetTypeUrl(), SystemVersionInfo: "1"}
		if r.GetTypeUrl() == listenerType {
			given := c.listener
			if c.sendRejected.Load() {
				given = &listenerv3.Listener{Name: "test"}
			}
			response.Resources = []*discoveryv3.Resource{{Name: "test", Version: "1", Resource: mustAny(given)}}
			for _, l := range c.more {
				response.Resources = append(response.Resources, &discoveryv3.Resource{Name: l.GetName(), Version: "1", Resource: mustAny(l)})
			}
		}
		if r.GetTypeUrl() == clusterType {
			for _, l := range c.clusters {
				response.Resources = append(response.Resources, &discoveryv3.Resource{Name: l.GetName(), Version: "1", Resource: mustAny(l)})
			}
		}
		for _, name := range r.GetResourceNamesSubscribe() {
			if filter := c.filters[name]; filter != nil && r.GetTypeUrl() == wasm.ExtensionConfigType {
				response.Resources = append(response.Resources, &discoveryv3.Resource{Name: name, Version: "1", Resource: c.extension(name)})
			}
		}
		if names := c.names.Load(); r.GetTypeUrl() == dns.NameTableType && names != nil {
			response.Resources = []*discoveryv3.Resource{{Resource: &anypb.Any{TypeUrl: dns.NameTableType, Value: *names}}}
		}
		if r.GetTypeUrl() == proxyConfigType {
			for _, own := range c.trust {
				response.Resources = append(response.Resources, &discoveryv3.Resource{Resource: &anypb.Any{TypeUrl: proxyConfigType, Value: own}})
			}
		}
		if err := s.Send(response); err != nil {
			return err
		}
	}
}

func (c *controlPlane) extension(name string) *anypb.Any {
	return mustAny(&corev3.TypedExtensionConfig{Name: name, TypedConfig: c.filters[name]})
}

// StreamAggregatedResources sends listeners and filters in the SotW variant.
func (c *controlPlane) StreamAggregatedResources(s discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	if err := c.authorize(s.Context()); err != nil {
		return err
	}
	asked := map[string]string{}
	for {
		r, err := s.Recv()
		if err != nil {
			return err
		}
		names := fmt.Sprintf("%q", r.GetResourceNames())
		if was, ok := asked[r.GetTypeUrl()]; r.GetTypeUrl() == healthType || ok && was == names {
			continue
		}
		asked[r.GetTypeUrl()] = names
		response := &discoveryv3.DiscoveryResponse{TypeUrl: r.GetTypeUrl(), Nonce: names, VersionInfo: "1"}
		if r.GetTypeUrl() == listenerType {
			for _, l := range append(c.more, c.listener) {
				response.Resources = append(response.Resources, mustAny(l))
			}
		}
		for _, name := range r.GetResourceNames() {
			if c.filters[name] != nil && r.GetTypeUrl() == wasm.ExtensionConfigType {
				response.Resources = append(response.Resources, c.extension(name))
			}
		}
		if err := s.Send(response); err != nil {
			return err
		}
	}
}

func mustAny(m proto.Message) *anypb.Any {
	a, err := anypb.New(m)
	if err != nil {
		panic(err)
	}
	return a
}

// tlsListener returns a listener that answers "hello" over TLS with the proxy's own certificate from SDS.
func tlsListener(t *testing.T, address string) *listenerv3.Listener {
	t.Helper()
	hcm := mustAny(&hcmv3.HttpConnectionManager{
		StatPrefix: "test",
		RouteSpecifier: &hcmv3.HttpConnectionManager_RouteConfig{RouteConfig: &routev3.RouteConfiguration{
			VirtualHosts: []*routev3.VirtualHost{{Name: "all", Domains: []string{"*"}, Routes: []*routev3.Route{{
				Match: &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}},
				Action: &routev3.Route_DirectResponse{DirectResponse: &routev3.DirectResponseAction{
					Status: 200, Body: &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: "hello"}},
				}},
			}}}},
		}},
		HttpFilters: []*hcmv3.HttpFilter{{Name: "router", ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: mustAny(&routerv3.Router{})}}},
	})
	secret := &tlsv3.SdsSecretConfig{Name: "default", SdsConfig: &corev3.ConfigSource{
		ResourceApiVersion: corev3.ApiVersion_V3,
		ConfigSourceSpecifier: &corev3.ConfigSource_ApiConfigSource{ApiConfigSource: &corev3.ApiConfigSource{
			ApiType: corev3.ApiConfigSource_GRPC, TransportApiVersion: corev3.ApiVersion_V3, SetNodeOnFirstMessageOnly: true,
			GrpcServices: []*corev3.GrpcService{{TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{
				EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{ClusterName: "sds-grpc"},
			}}},
		}},
	}}
	tlsContext := mustAny(&tlsv3.DownstreamTlsContext{CommonTlsContext: &tlsv3.CommonTlsContext{
		TlsCertificateSdsSecretConfigs: []*tlsv3.SdsSecretConfig{secret},
	}})
	return &listenerv3.Listener{
		Name: "test", TrafficDirection: corev3.TrafficDirection_INBOUND,
		Address: &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
			Address: address, PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: 8443},
		}}},
		FilterChains: []*listenerv3.FilterChain{{
			Filters:         []*listenerv3.Filter{{Name: "hcm", ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: hcm}}},
			TransportSocket: &corev3.TransportSocket{Name: "tls", ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: tlsContext}},
		}},
	}
}

// dialProxy opens a TLS connection to the proxy's listener, and returns the proxy's identity.
func dialProxy(address string) (*tls.Conn, string, error) {
	d := &net.Dialer{Timeout: time.Second}
	c, err := tls.DialWithDialer(d, "tcp", net.JoinHostPort(address, "8443"), &tls.Config{InsecureSkipVerify: true})
	if err != nil {
		return nil, "", err
	}
	certs := c.ConnectionState().PeerCertificates
	if len(certs) == 0 || len(certs[0].URIs) == 0 {
		return nil, "", errors.Join(errors.New("the proxy's certificate has no URI"), c.Close())
	}
	return c, fmt.Sprint(certs[0].URIs[0]), nil
}
