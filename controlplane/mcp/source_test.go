package mcp

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	networking "istio.io/api/networking/v1alpha3"
	security "istio.io/api/security/v1beta1"
	typev1beta1 "istio.io/api/type/v1beta1"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/internal/dial"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
	"github.com/pilotfish-mesh/pilotfish/internal/testpki"
)

var plaintext = dial.Server{Plaintext: true}

func isSynced(s *Source) bool {
	select {
	case <-s.Synced():
		return true
	default:
		return false
	}
}

func awaitHosts(t testing.TB, s *Source, want ...string) {
	t.Helper()
	testenv.Eventually(t, "the source has its documents", func() error {
		if got := hostsOf(s); !slices.Equal(got, want) {
			return fmt.Errorf("it has %v, not %v", got, want)
		}
		return nil
	})
}

func TestSourceIsSyncedWhenAllKindsWereAccepted(t *testing.T) {
	server := newTestServer(t, "")
	s := runSource(t, server.address, plaintext)
	c, first := server.accept()
	if r := first[TypeURL(config.IstioKinds()[0])]; r.GetNode().GetMetadata().GetFields()["GENERATOR"].GetStringValue() != "api" || !slices.Equal(r.GetResourceNamesSubscribe(), []string{"*"}) {
		t.Errorf("the first request is %v", r)
	}
	c.answerAll(t)
	if isSynced(s) {
		t.Error("it is synced without a response for VirtualServices")
	}
	if ok, reason := s.Health(); ok || !strings.Contains(reason, typeOfRoutes) {
		t.Errorf("its health is %v, %q", ok, reason)
	}
	if answer := c.send(t, routes(t, "1", []*discoveryv3.Resource{route(t, "shop/a", "1", "a", 1)})); answer.GetErrorDetail() != nil {
		t.Fatalf("the response is rejected: %v", answer.GetErrorDetail())
	}
	<-s.Synced()
	awaitHosts(t, s, "a")
	if ok, reason := s.Health(); !ok {
		t.Errorf("it is not healthy: %s", reason)
	}
	c.send(t, routes(t, "2", []*discoveryv3.Resource{route(t, "shop/b", "1", "b", 1)}, "shop/a"))
	awaitHosts(t, s, "b")
}

func TestValidDocumentsOfRejectedResponseAreInForce(t *testing.T) {
	server := newTestServer(t, "")
	s := runSource(t, server.address, plaintext)
	c, _ := server.accept()
	c.answerAll(t)
	c.send(t, routes(t, "1", []*discoveryv3.Resource{route(t, "shop/a", "1", "a", 1), route(t, "shop/gone", "1", "gone", 1)}))
	<-s.Synced()

	answer := c.send(t, routes(t, "2", []*discoveryv3.Resource{route(t, "shop/a", "2", "a2", -1), route(t, "shop/b", "1", "b", 1), route(t, "shop/new", "1", "new", -1)}, "shop/gone"))
	for _, want := range []string{"VirtualService shop/a", "VirtualService shop/new", "spec.http[0].route[0].weight"} {
		if !strings.Contains(answer.GetErrorDetail().GetMessage(), want) {
			t.Errorf("the NACK is %v, without %q", answer.GetErrorDetail(), want)
		}
	}
	if strings.Contains(answer.GetErrorDetail().GetMessage(), "shop/b") {
		t.Errorf("the NACK names a valid document: %v", answer.GetErrorDetail())
	}
	awaitHosts(t, s, "a", "b")
	if problems := s.Problems(); len(problems) != 2 || problems[0].Severity != config.Error || problems[0].Key.Name != "a" || problems[1].Key.Name != "new" {
		t.Errorf("the problems are %v", problems)
	}
	if got, want := statesOf(s), map[string]config.DocumentState{"a": config.Stale, "b": config.InForce, "new": config.Refused}; !maps.Equal(got, want) {
		t.Errorf("the documents are %v, want %v", got, want)
	}

	// A new stream reports the accepted versions, so that the server sends the rejected documents again.
	c.close()
	c, first := server.accept()
	if known, want := first[typeOfRoutes].GetInitialResourceVersions(), map[string]string{"shop/a": "1", "shop/b": "1"}; !maps.Equal(known, want) {
		t.Errorf("the client reports %v, want %v", known, want)
	}
	if answer := c.send(t, routes(t, "3", []*discoveryv3.Resource{route(t, "shop/a", "3", "a3", 1)}, "shop/new")); answer.GetErrorDetail() != nil {
		t.Fatalf("the corrected response is rejected: %v", answer.GetErrorDetail())
	}
	awaitHosts(t, s, "a3", "b")
	if problems := s.Problems(); len(problems) != 0 {
		t.Errorf("the problems are %v", problems)
	}
}

// statesOf returns the states of the source's documents by their names.
func statesOf(s *Source) map[string]config.DocumentState {
	states := map[string]config.DocumentState{}
	for _, d := range s.Documents() {
		states[d.Key.Name] = d.State
	}
	return states
}

func TestInvalidDocumentOfFirstResponseDoesNotSync(t *testing.T) {
	server := newTestServer(t, "")
	s := runSource(t, server.address, plaintext)
	c, _ := server.accept()
	c.answerAll(t)
	c.send(t, routes(t, "1", []*discoveryv3.Resource{route(t, "shop/a", "1", "a", -1), route(t, "shop/b", "1", "b", 1)}))
	awaitHosts(t, s, "b")
	if isSynced(s) {
		t.Error("it is synced although no version of a document was accepted")
	}
	c.close()
	c, first := server.accept()
	if known := first[typeOfRoutes].GetInitialResourceVersions(); len(known) != 0 {
		t.Errorf("the client reports %v, so that the server may not send a complete response", known)
	}
	c.send(t, routes(t, "1", []*discoveryv3.Resource{route(t, "shop/a", "1", "a", -1), route(t, "shop/b", "1", "b", 1)}))
	c.send(t, routes(t, "2", []*discoveryv3.Resource{route(t, "shop/a", "2", "a", 1)}))
	<-s.Synced()
	awaitHosts(t, s, "a", "b")
}

func TestRefusedPolicyWithoutAcceptedVersionDenies(t *testing.T) {
	server := newTestServer(t, "")
	s := runSource(t, server.address, plaintext)
	c, _ := server.accept()
	typeOfPolicies := TypeURL(config.AuthorizationPolicy)
	for _, kind := range config.IstioKinds() {
		c.send(t, &discoveryv3.DeltaDiscoveryResponse{TypeUrl: TypeURL(kind), Nonce: "initial-" + string(kind)})
	}
	<-s.Synced()
	send := func(nonce, version string, spec *security.AuthorizationPolicy) string {
		t.Helper()
		body := &discoveryv3.Resource{Name: "shop/pages", Version: version, Resource: pack(t, "shop/pages", spec)}
		return c.send(t, &discoveryv3.DeltaDiscoveryResponse{TypeUrl: typeOfPolicies, Nonce: nonce, Resources: []*discoveryv3.Resource{body}}).GetErrorDetail().GetMessage()
	}
	policy := func() *security.AuthorizationPolicy {
		r := s.Get(config.Key{Kind: config.AuthorizationPolicy, Namespace: "shop", Name: "pages"})
		if r == nil {
			return nil
		}
		return r.Spec.(*security.AuthorizationPolicy)
	}
	selector := &typev1beta1.WorkloadSelector{MatchLabels: map[string]string{"app": "page"}}
	invalid := &security.AuthorizationPolicy{Selector: selector, Rules: []*security.Rule{{When: []*security.Condition{{Key: "no.such.key", Values: []string{"x"}}}}}}
	if reason := send("1", "1", invalid); !strings.Contains(reason, "no.such.key") || !strings.Contains(reason, "are denied") {
		t.Errorf("the NACK is %q", reason)
	}
	if p := policy(); p.GetAction() != security.AuthorizationPolicy_DENY || !proto.Equal(p.GetSelector(), selector) {
		t.Errorf("the policy in force is %v", p)
	}
	if got := statesOf(s)["pages"]; got != config.Denied {
		t.Errorf("the state is %q", got)
	}
	valid := &security.AuthorizationPolicy{Selector: selector, Rules: []*security.Rule{{To: []*security.Rule_To{{Operation: &security.Operation{Methods: []string{"GET"}}}}}}}
	if reason := send("2", "2", valid); reason != "" {
		t.Fatalf("the corrected policy is rejected: %s", reason)
	}
	if reason := send("3", "3", invalid); !strings.Contains(reason, "no.such.key") || strings.Contains(reason, "are denied") {
		t.Errorf("the NACK of a later version is %q", reason)
	}
	if p := policy(); p.GetAction() != security.AuthorizationPolicy_ALLOW || len(p.GetRules()) != 1 || statesOf(s)["pages"] != config.Stale {
		t.Errorf("the policy in force is %v, %v", p, statesOf(s))
	}
}

func TestDocumentsStayWhileTheServerIsAway(t *testing.T) {
	server := newTestServer(t, "")
	s := runSource(t, server.address, plaintext)
	c, _ := server.accept()
	c.answerAll(t)
	c.send(t, routes(t, "1", []*discoveryv3.Resource{route(t, "shop/a", "1", "a", 1), route(t, "shop/b", "1", "b", 1)}))
	<-s.Synced()
	server.server.Stop()
	testenv.Eventually(t, "the loss is reported", func() error {
		if ok, reason := s.Health(); ok || !strings.Contains(reason, "stay in force") {
			return fmt.Errorf("the health is %v, %q", ok, reason)
		}
		return nil
	})
	awaitHosts(t, s, "a", "b")

	again := newTestServer(t, server.address)
	c, first := again.accept()
	if known := first[typeOfRoutes].GetInitialResourceVersions(); len(known) != 2 {
		t.Errorf("the client reports %v", known)
	}
	c.send(t, routes(t, "1", nil, "shop/b"))
	awaitHosts(t, s, "a")
}

// sotwServer has only the state-of-the-world variant.
type sotwServer struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	streams chan discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer
	end     chan struct{}
}

func (s *sotwServer) StreamAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	s.streams <- stream
	select {
	case <-s.end:
	case <-stream.Context().Done():
	}
	return nil
}

func TestServerWithoutDelta(t *testing.T) {
	server := &sotwServer{streams: make(chan discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer, 1), end: make(chan struct{})}
	address, _ := serve(t, "", server)
	s := runSource(t, address, plaintext)
	stream := <-server.streams
	defer close(server.end)
	for range config.IstioKinds() {
		if r, err := stream.Recv(); err != nil || r.GetResponseNonce() != "" {
			t.Fatalf("the request is %v, %v", r, err)
		}
	}
	send := func(typeURL, nonce string, resources ...*discoveryv3.Resource) *discoveryv3.DiscoveryRequest {
		t.Helper()
		r := &discoveryv3.DiscoveryResponse{TypeUrl: typeURL, VersionInfo: nonce, Nonce: nonce}
		for _, one := range resources {
			r.Resources = append(r.Resources, one.GetResource())
		}
		if err := stream.Send(r); err != nil {
			t.Fatal(err)
		}
		answer, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		return answer
	}
	for _, kind := range config.IstioKinds() {
		send(TypeURL(kind), "1")
	}
	<-s.Synced()
	a, b := route(t, "shop/a", "", "a", 1), route(t, "shop/b", "", "b", 1)
	if answer := send(typeOfRoutes, "2", a, b); answer.GetVersionInfo() != "2" || answer.GetErrorDetail() != nil {
		t.Errorf("the answer is %v", answer)
	}
	awaitHosts(t, s, "a", "b")
	if answer := send(typeOfRoutes, "3", route(t, "shop/a", "", "a", -1)); answer.GetVersionInfo() != "2" || !strings.Contains(answer.GetErrorDetail().GetMessage(), "shop/a") {
		t.Errorf("the answer is %v", answer)
	}
	awaitHosts(t, s, "a") // b was removed, and a has its last accepted version
	if answer := send(typeOfRoutes, "4", a, b, b); answer.GetErrorDetail() == nil {
		t.Error("a response with two documents of one name is accepted")
	}
	awaitHosts(t, s, "a")
	send(typeOfRoutes, "5", a, b)
	awaitHosts(t, s, "a", "b")
	if answer := send(typeOfRoutes, "6", route(t, "", "", "x", 1)); answer.GetErrorDetail() == nil {
		t.Error("a document without a name is accepted")
	}
	awaitHosts(t, s, "a", "b") // the document without a name may be any of them
	send(typeOfRoutes, "7", b)
	awaitHosts(t, s, "b")
}

func TestResponsesBeyondTheLimitsChangeNothing(t *testing.T) {
	server := newTestServer(t, "")
	s := runSource(t, server.address, plaintext)
	c, _ := server.accept()
	c.answerAll(t)
	c.send(t, routes(t, "1", []*discoveryv3.Resource{route(t, "shop/a", "1", "a", 1)}))
	<-s.Synced()

	var many []*discoveryv3.Resource
	for i := range maxDocuments + 1 {
		many = append(many, &discoveryv3.Resource{Name: fmt.Sprintf("shop/r%d", i)})
	}
	answer := c.send(t, routes(t, "2", many))
	if reason := answer.GetErrorDetail().GetMessage(); !strings.Contains(reason, "exceed the limit of 20000") {
		t.Errorf("the NACK is %q", reason)
	}
	answer = c.send(t, routes(t, "3", many[:1000]))
	if reason := answer.GetErrorDetail().GetMessage(); len(reason) > maxReasons*maxReason+1000 || !strings.Contains(reason, "more problems") {
		t.Errorf("the NACK has %d bytes: %.300q", len(reason), reason)
	}
	if n := len(s.Problems()); n > maxRejected+1 {
		t.Errorf("%d problems are stored", n)
	}
	large, err := anypb.New(wrapperspb.Bytes(make([]byte, maxResponse)))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Send(routes(t, "4", []*discoveryv3.Resource{{Name: "shop/large", Resource: large}})); err != nil {
		t.Fatal(err)
	}
	c, _ = server.accept() // the client ended the stream and connects again
	awaitHosts(t, s, "a")
	c.send(t, routes(t, "1", []*discoveryv3.Resource{route(t, "shop/a", "2", "a2", 1)}))
	awaitHosts(t, s, "a2")
}

func TestFloodOfResponsesEndsInTheLastState(t *testing.T) {
	server := newTestServer(t, "")
	s := runSource(t, server.address, plaintext)
	c, _ := server.accept()
	c.answerAll(t)
	c.send(t, routes(t, "1", []*discoveryv3.Resource{route(t, "shop/a", "1", "a", 1)}))
	<-s.Synced()
	const count = 2000
	for i := range count {
		r := routes(t, fmt.Sprint("flood-", i), []*discoveryv3.Resource{route(t, "shop/a", fmt.Sprint(i), fmt.Sprint("a", i), 1)})
		if err := c.Send(r); err != nil {
			t.Fatal(err)
		}
	}
	awaitHosts(t, s, fmt.Sprint("a", count-1))
}

func TestServersOfTLS(t *testing.T) {
	pki, other := testpki.New(t, "root"), testpki.New(t, "other")
	dir := t.TempDir()
	file := func(name string, content []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	cert, key := pki.Workload(t, "spiffe://cluster.local/ns/istio-system/sa/reader")
	certFile, keyFile := file("cert.pem", cert), file("key.pem", key)
	roots, otherRoots, tokenFile := file("root.pem", pki.PEM()), file("other.pem", other.PEM()), file("token", []byte("secret\n"))
	for name, c := range map[string]struct {
		settings *networking.ClientTLSSettings
		wantErr  string
		token    bool
	}{
		"simple with a file":           {&networking.ClientTLSSettings{Mode: networking.ClientTLSSettings_SIMPLE, CaCertificates: roots}, "", true},
		"simple with the certificates": {&networking.ClientTLSSettings{Mode: networking.ClientTLSSettings_SIMPLE, CaCertificates: string(pki.PEM())}, "", true},
		"mutual":                       {&networking.ClientTLSSettings{Mode: networking.ClientTLSSettings_MUTUAL, CaCertificates: roots, ClientCertificate: certFile, PrivateKey: keyFile}, "", true},
		"names":                        {&networking.ClientTLSSettings{Mode: networking.ClientTLSSettings_SIMPLE, CaCertificates: roots, Sni: "source.example", SubjectAltNames: []string{"source.example"}}, "", true},
		"other names":                  {&networking.ClientTLSSettings{Mode: networking.ClientTLSSettings_SIMPLE, CaCertificates: roots, SubjectAltNames: []string{"other.example"}}, "subjectAltNames", false},
		"another root":                 {&networking.ClientTLSSettings{Mode: networking.ClientTLSSettings_SIMPLE, CaCertificates: otherRoots}, "unknown authority", false},
		"another root in the text":     {&networking.ClientTLSSettings{Mode: networking.ClientTLSSettings_SIMPLE, CaCertificates: string(other.PEM())}, "unknown authority", false},
		"roots of the system":          {&networking.ClientTLSSettings{Mode: networking.ClientTLSSettings_SIMPLE}, "unknown authority", false},
		"another host":                 {&networking.ClientTLSSettings{Mode: networking.ClientTLSSettings_SIMPLE, CaCertificates: roots, Sni: "elsewhere.example"}, "elsewhere.example", false},
		"not verified":                 {&networking.ClientTLSSettings{Mode: networking.ClientTLSSettings_SIMPLE, InsecureSkipVerify: wrapperspb.Bool(true)}, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			server := newTestServer(t, "", grpc.Creds(credentials.NewTLS(pki.ServerConfig(t, "127.0.0.1", "source.example"))))
			s := runSource(t, server.address, NewServer(c.settings, tokenFile, ""))
			if c.wantErr == "" {
				client, _ := server.accept()
				if got := slices.Equal(client.header.Get("authorization"), []string{"Bearer secret"}); got != c.token {
					t.Errorf("the token is sent: %v", got)
				}
				return
			}
			testenv.Eventually(t, "the failure is reported", func() error {
				if ok, reason := s.Health(); ok || !strings.Contains(reason, c.wantErr) {
					return fmt.Errorf("the health is %v, %q", ok, reason)
				}
				return nil
			})
		})
	}
}

func TestWarningsOfAcceptedDocumentsAreReported(t *testing.T) {
	server := newTestServer(t, "")
	s := runSource(t, server.address, plaintext)
	c, _ := server.accept()
	c.answerAll(t)
	spec := &networking.VirtualService{Hosts: []string{"a"}, Http: []*networking.HTTPRoute{{
		Route: []*networking.HTTPRouteDestination{{Destination: &networking.Destination{Host: "a"}}},
		Fault: &networking.HTTPFaultInjection{Delay: &networking.HTTPFaultInjection_Delay{
			HttpDelayType: &networking.HTTPFaultInjection_Delay_ExponentialDelay{ExponentialDelay: durationpb.New(time.Second)}, Percentage: &networking.Percent{Value: 1},
		}},
	}}}
	c.send(t, routes(t, "1", []*discoveryv3.Resource{{Name: "shop/a", Version: "1", Resource: pack(t, "shop/a", spec)}}))
	<-s.Synced()
	problems := s.Problems()
	if len(problems) != 1 || problems[0].Code != config.NoEffect || problems[0].Key.Name != "a" || problems[0].At.String() != "xds://"+server.address {
		t.Errorf("the problems are %v", problems)
	}
	c.send(t, routes(t, "2", nil, "shop/a"))
	testenv.Eventually(t, "the warning has ended", func() error {
		if problems := s.Problems(); len(problems) > 0 {
			return fmt.Errorf("the problems are %v", problems)
		}
		return nil
	})
}
