package translate_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	meshconfig "istio.io/api/mesh/v1alpha1"

	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
	"github.com/pilotfish-mesh/pilotfish/controlplane/translate"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// envoyCheckedMeshes is the number of random meshes that real Envoys receive. For more:
//
//	go test ./controlplane/translate -run TestEnvoyAcceptsRandomMeshes -envoy-meshes 100 -first-random-mesh 5000
var envoyCheckedMeshes = flag.Uint64("envoy-meshes", 2, "number of random meshes for real Envoys")

// envoyCheckEdits is the number of edits per mesh, and envoyCheckInterval the number between two checks with a real
// Envoy.
const envoyCheckEdits, envoyCheckInterval = 60, 20

// TestEnvoyAcceptsRandomMeshes: many documents use the same names, addresses and ports. Envoy must accept all
// resources.
func TestEnvoyAcceptsRandomMeshes(t *testing.T) {
	file := filepath.Join(t.TempDir(), "answer.wasm")
	if err := os.WriteFile(file, answering("wasm"), 0o644); err != nil {
		t.Fatal(err)
	}
	module := "file://" + file
	for i, version := range []string{testenv.EnvoyVersion, testenv.OldEnvoyVersion} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			c := envoyCheck{t, version, strings.NewReplacer("127.193.", fmt.Sprintf("127.%d.", 206+i), "file:///a.wasm", module, "oci://registry.example/b:1", module)}
			e := c.envoy()
			for seed := *firstSeed; seed < *firstSeed+*envoyCheckedMeshes; seed++ {
				generator := newDocumentGenerator(seed)
				var edits []string
				for n := range envoyCheckEdits {
					edits = append(edits, generator.edit())
					if n%envoyCheckInterval < envoyCheckInterval-1 {
						continue
					}
					if complaint := c.check(e, edits); complaint != "" {
						t.Errorf("seed %d, after %d edits: %s", seed, n+1, complaint)
						c.reportMinimal(edits)
						return
					}
				}
			}
		})
	}
}

// envoyCheck checks random meshes with one version of Envoy, at reserved addresses.
type envoyCheck struct {
	t       *testing.T
	version string
	ours    *strings.Replacer
}

type checkedEnvoy struct {
	*envoy
	plane *testControlPlane
}

func (c envoyCheck) envoy() checkedEnvoy {
	plane := newTestControlPlane(c.t)
	plane.push(pushState{snap: newTestMesh(c.t, nil).snap}, snapshot.Change{Full: true})
	e := plane.startEnvoy(c.version, c.ours.Replace("sidecar taster.default 127.193.250.1"), "spiffe://cluster.local/ns/default/sa/taster")
	plane.inSync(1)
	return checkedEnvoy{e, plane}
}

// check sends Envoy the resources for each proxy after the edits. It returns Envoy's error message, or "".
func (c envoyCheck) check(e checkedEnvoy, edits []string) (complaint string) {
	m := &randomMesh{testMesh: newTestMesh(c.t, &meshconfig.MeshConfig{}, baseDocuments)}
	for _, edit := range edits {
		m.applyEdit(c.ours.Replace(edit))
	}
	m.rebuild(nil)
	for _, description := range randomMeshProxies {
		if complaint := e.checkProxy(e.plane, m.testMesh, c.proxy(description)); complaint != "" {
			return description + ": " + complaint
		}
	}
	return ""
}

// proxy returns a proxy from its description, with this Envoy version.
func (c envoyCheck) proxy(description string) *translate.Proxy {
	if before, _, found := strings.Cut(description, "ENVOY_VERSION="); found {
		description = before + "ENVOY_VERSION=" + c.version
	}
	p := proxy(c.t, c.ours.Replace(description))
	// The same for all proxies: an Envoy cannot change between VHDS and full route configurations.
	p.UseVHDS = c.version == testenv.EnvoyVersion
	return p
}

// reportMinimal reports the minimal edits after which a new Envoy rejects a resource.
func (c envoyCheck) reportMinimal(edits []string) {
	c.t.Helper()
	complaint := c.check(c.envoy(), edits)
	if complaint == "" {
		c.t.Log("a newly started Envoy accepts the resources")
		return
	}
	for size := len(edits) / 2; size > 0; size /= 2 {
		for at := 0; at+size <= len(edits); {
			fewer := slices.Delete(slices.Clone(edits), at, at+size)
			if again := c.check(c.envoy(), fewer); again != "" {
				edits, complaint = fewer, again
			} else {
				at += size
			}
		}
	}
	c.t.Errorf("%s, of\n%s", complaint, strings.Join(edits, "\n---\n"))
}
