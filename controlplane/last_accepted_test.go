package controlplane_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/pilotfish-mesh/pilotfish/controlplane"
	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

const serviceOfReviews = `
apiVersion: v1
kind: Service
metadata: {name: reviews}
spec:
  selector: {app: reviews}
  ports: [{name: http, port: 9080}]
`

const strictPolicy = `
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: default, namespace: istio-system}
spec: {mtls: {mode: STRICT}}
`

// inboundListener requests the listeners as a sidecar of reviews, and returns the one of port 9080.
func (p *testServer) inboundListener() *listenerv3.Listener {
	p.t.Helper()
	conn, err := grpc.NewClient(p.PlainAddr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		p.t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx)
	if err != nil {
		p.t.Fatal(err)
	}
	metadata, err := structpb.NewStruct(map[string]any{"NAMESPACE": "default", "INTERCEPTION_MODE": "NONE",
		"APP_ADDRESS": "127.68.61.3", "INSTANCE_IPS": "127.68.61.2", "LABELS": map[string]any{"app": "reviews"}})
	if err != nil {
		p.t.Fatal(err)
	}
	node := &corev3.Node{Id: "sidecar~127.68.61.2~reviews.default~default.svc.cluster.local", Metadata: metadata}
	if err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{Node: node, TypeUrl: xds.ListenerType}); err != nil {
		p.t.Fatal(err)
	}
	resp, err := stream.Recv()
	if err != nil {
		p.t.Fatal(err)
	}
	for _, r := range resp.GetResources() {
		var l listenerv3.Listener
		if err := r.GetResource().UnmarshalTo(&l); err != nil {
			p.t.Fatal(err)
		}
		if l.GetAddress().GetSocketAddress().GetPortValue() == 9080 {
			return &l
		}
	}
	p.t.Fatal("there is no inbound listener")
	return nil
}

// acceptsPlaintext reports whether a listener accepts connections without TLS.
func acceptsPlaintext(l *listenerv3.Listener) bool {
	for _, chain := range append(l.GetFilterChains(), l.GetDefaultFilterChain()) {
		if chain != nil && chain.GetTransportSocket() == nil {
			return true
		}
	}
	return false
}

func (p *testServer) staleDocuments() {
	p.t.Helper()
	testenv.Eventually(p.t, "the policy is refused, and its last accepted version is in force", func() error {
		for _, d := range p.Status().Documents {
			if d.Key.Kind == config.PeerAuthentication && d.State == config.Stale {
				return nil
			}
		}
		return fmt.Errorf("documents are %+v", p.Status().Documents)
	})
}

func TestRestartWithABadEditKeepsStrictMutualTLS(t *testing.T) {
	for name, bad := range map[string]string{
		"refused document": strings.Replace(strictPolicy, "STRICT", "STRICTT", 1), "unreadable file": "{",
	} {
		t.Run(name, func(t *testing.T) {
			dir, state := t.TempDir(), filepath.Join(t.TempDir(), "state")
			policy := filepath.Join(dir, "policy.yaml")
			write(t, filepath.Join(dir, "services.yaml"), serviceOfReviews)
			write(t, policy, strictPolicy)
			cfg := controlplane.Config{ConfigDirs: []string{dir}, StateDir: state, Ports: freePorts}
			p := start(t, cfg)
			write(t, policy, bad)
			p.staleDocuments()
			if acceptsPlaintext(p.inboundListener()) {
				t.Fatal("mutual TLS is disabled after a bad edit")
			}
			kept := filepath.Join(state, "last-good")
			testenv.Eventually(t, "the policy is stored", func() error { _, err := os.Stat(kept); return err })
			p.stop()

			p = start(t, cfg)
			if acceptsPlaintext(p.inboundListener()) {
				t.Fatal("mutual TLS is disabled after a restart")
			}
			p.staleDocuments()

			write(t, policy, strings.Replace(strictPolicy, "STRICT", "PERMISSIVE", 1))
			testenv.Eventually(t, "the fixed policy is in force, and no version is stored", func() error {
				if _, err := os.Stat(kept); !os.IsNotExist(err) {
					return fmt.Errorf("%s exists: %v", kept, err)
				}
				if !acceptsPlaintext(p.inboundListener()) {
					return errors.New("mutual TLS is strict")
				}
				return nil
			})
		})
	}
}
