package controlplane_test

import (
	"path/filepath"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	securityv1 "istio.io/api/security/v1alpha1"

	"github.com/pilotfish-mesh/pilotfish/controlplane"
	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// maxDenyDelay is much longer than the polling interval of the deny list, because the machine may be busy.
const maxDenyDelay = 10 * time.Second

func TestDenyListIsInForceSoonAfterAnEdit(t *testing.T) {
	list := filepath.Join(t.TempDir(), "deny.yaml")
	write(t, list, "")
	p := start(t, controlplane.Config{Ports: freePorts, Stores: []config.Store{config.NewMemoryStore()}, Authority: controlplane.AuthorityConfig{DenyList: list}})
	ctx := asBearer(t.Context(), p.token("shop", "reviews"))
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(p.dial()).DeltaAggregatedResources(ctx)
	if err != nil {
		t.Fatal(err)
	}
	csr, _ := request(t, "spiffe://cluster.local/ns/shop/sa/reviews")
	certify := func() error {
		_, err := securityv1.NewIstioCertificateServiceClient(p.dial()).CreateCertificate(ctx, &securityv1.IstioCertificateRequest{Csr: string(csr)})
		return err
	}
	if err := certify(); err != nil {
		t.Fatalf("before the edit: %v", err)
	}
	start := time.Now()
	write(t, list, "accounts: [shop/reviews]\n")
	_, err = stream.Recv() // returns when the control plane ends the stream
	wantCode(t, err, codes.PermissionDenied)
	if delay := time.Since(start); delay > maxDenyDelay {
		t.Errorf("the stream ended %s after the edit", delay)
	}
	wantCode(t, certify(), codes.Unauthenticated, "deny list")
	write(t, list, "")
	testenv.Eventually(t, "an account is accepted again when the list does not name it", certify)
}
