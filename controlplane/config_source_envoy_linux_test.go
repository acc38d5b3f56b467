package controlplane_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/controlplane"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

func TestEnvoyFollowsTheDocumentsOfAnotherControlPlane(t *testing.T) {
	b := newBookshop(t, "127.68.26", testenv.EnvoyVersion)
	b.awaitBody("reviews", "reviews-v1")
	b.plane.stop()
	if err := os.Remove(filepath.Join(b.dir, "route.yaml")); err != nil {
		t.Fatal(err)
	}

	dir := t.TempDir()
	file := filepath.Join(dir, "route.yaml")
	write(t, file, fmt.Sprintf(routeDocument, "v2"))
	source := start(t, controlplane.Config{ConfigDirs: []string{dir}, Ports: freePorts, DocumentReaders: []string{"istio-system/reader"}})
	cfg := source.feed(t)
	cfg.ConfigDirs, cfg.StateDir, cfg.Address, cfg.Ports = b.cfg.ConfigDirs, b.cfg.StateDir, b.cfg.Address, controlplane.Ports{}
	b.plane = start(t, cfg)
	b.awaitBody("reviews", "reviews-v2")
	write(t, file, fmt.Sprintf(routeDocument, "v1"))
	b.awaitBody("reviews", "reviews-v1")

	source.stop()
	b.plane.awaitProblem("[PF0013]")
	b.awaitSync()
	b.awaitBody("reviews", "reviews-v1")
}
