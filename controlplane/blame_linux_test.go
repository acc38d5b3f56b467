package controlplane_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// What no check here finds wrong an Envoy may still refuse. Whoever wrote it is told which document it was, and the Envoy
// keeps what it had.
func TestWhatARealEnvoyRejectsIsTracedToItsDocument(t *testing.T) {
	b := openBookshop(t, "127.177.9", testenv.EnvoyVersion)
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
	r := b.plane.rejection(xds.ClusterType)
	if len(r.From) == 0 || r.From[0].Document != "EnvoyFilter default/rings" || !strings.HasPrefix(r.From[0].At, file) ||
		!strings.Contains(r.From[0].Why, "it changed since the last configuration that was accepted") {
		t.Errorf("rejected for %q, and the documents that are named are %+v", r.Reason, r.From)
	}
	t.Logf("%s: %+v", r.Reason, r.From)
}
