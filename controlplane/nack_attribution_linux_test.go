package controlplane_test

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// Envoy may reject what the control plane's checks accept. The rejection names the document and the reason.
func TestEnvoyRejectionIsAttributedToItsDocument(t *testing.T) {
	b := newBookshop(t, "127.177.9", testenv.EnvoyVersion)
	testenv.Eventually(t, "the Envoy is in sync", func() error {
		for _, c := range b.plane.Status().Clients {
			if c.InSync && len(c.Types) > 2 {
				return nil
			}
		}
		return fmt.Errorf("clients are %+v", b.plane.Status().Clients)
	})
	file := filepath.Join(b.dir, "filter.yaml")
	write(t, file, `apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {name: rings}
spec:
  configPatches:
  - applyTo: CLUSTER
    match: {cluster: {service: ratings.default.svc.cluster.local}}
    patch:
      operation: MERGE
      value: {lb_policy: RING_HASH, ring_hash_lb_config: {minimum_ring_size: 10, maximum_ring_size: 5}}
`)
	b.plane.awaitProblem(file)
	b.plane.awaitProblem("minimum_ring_size (10) > maximum_ring_size (5)")
	b.awaitSync()
	b.awaitBody("ratings", "ratings-v1")
}
