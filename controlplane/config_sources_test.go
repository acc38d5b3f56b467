package controlplane_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/controlplane"
	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

func TestDirectoryOfTheMeshConfiguration(t *testing.T) {
	dir, mesh := t.TempDir(), filepath.Join(t.TempDir(), "mesh.yaml")
	write(t, filepath.Join(dir, "all.yaml"), sourceDocuments)
	write(t, mesh, fmt.Sprintf("configSources: [{address: \"fs://%s\"}, {address: \"k8s://\"}]\n", dir))
	p := start(t, controlplane.Config{MeshConfigFile: mesh, Ports: freePorts})
	p.awaitDocuments(config.VirtualService, "default/reviews")
	p.awaitProblem("sources of this scheme have no effect")
	write(t, filepath.Join(dir, "more.yaml"), strings.ReplaceAll(strings.SplitN(sourceDocuments, "---", 2)[0], "name: reviews", "name: more"))
	p.awaitDocuments(config.VirtualService, "default/more", "default/reviews")

	write(t, mesh, "configSources: []\n")
	p.awaitProblem("changed configuration sources have no effect before the next start")
	p.awaitDocuments(config.VirtualService, "default/more", "default/reviews")
}
