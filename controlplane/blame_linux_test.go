package controlplane_test

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// What no check here finds wrong an Envoy may still refuse. Whoever wrote it is told which document it was, and why.
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
	b.plane.problem(file)
	b.plane.problem("minimum_ring_size (10) > maximum_ring_size (5)")
	b.inSync()
	b.answers("ratings", "ratings-v1")
}
