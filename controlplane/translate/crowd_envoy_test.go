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

// tastedCrowds is how many; more, and others: go test ./controlplane/translate -run TakeWhatCrowds -tasted-crowds 100 -first-crowd 5000
var tastedCrowds = flag.Uint64("tasted-crowds", 2, "how many crowded meshes to give to real Envoys")

// tastedEdits is how many edits make a crowd, and tasted how many of them there are between two times that an Envoy gets
// what comes of them.
const tastedEdits, tasted = 60, 20

// TestEnvoysTakeWhatCrowdsMake: where many want the same names, addresses and ports, nothing of what comes of it is refused.
func TestEnvoysTakeWhatCrowdsMake(t *testing.T) {
	file := filepath.Join(t.TempDir(), "answer.wasm")
	if err := os.WriteFile(file, answering("wasm"), 0o644); err != nil {
		t.Fatal(err)
	}
	module := "file://" + file
	for i, version := range []string{testenv.EnvoyVersion, testenv.OldEnvoyVersion} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			c := tasting{t, version, strings.NewReplacer("127.193.", fmt.Sprintf("127.%d.", 206+i), "file:///a.wasm", module, "oci://registry.example/b:1", module)}
			e := c.envoy()
			for seed := *firstCrowd; seed < *firstCrowd+*tastedCrowds; seed++ {
				crowd := newCrowd(seed)
				var edits []string
				for n := range tastedEdits {
					edits = append(edits, crowd.edit())
					if n%tasted < tasted-1 {
						continue
					}
					if complaint := c.taste(e, edits); complaint != "" {
						t.Errorf("seed %d, after %d edits: %s", seed, n+1, complaint)
						c.tell(edits)
						return
					}
				}
			}
		})
	}
}

// tasting has Envoys of a version take what crowds make, at addresses that are theirs.
type tasting struct {
	t       *testing.T
	version string
	ours    *strings.Replacer
}

type taster struct {
	*envoy
	plane *plane
}

func (c tasting) envoy() taster {
	plane := newPlane(c.t)
	plane.push(state{snap: newTestMesh(c.t, nil).snap}, snapshot.Change{Full: true})
	e := plane.startEnvoy(c.version, c.ours.Replace("sidecar taster.default 127.193.250.1"), "spiffe://cluster.local/ns/default/sa/taster")
	plane.inSync(1)
	return taster{e, plane}
}

// taste gives an Envoy what edits make for each proxy, and tells what it does not like.
func (c tasting) taste(e taster, edits []string) (complaint string) {
	m := &crowded{testMesh: newTestMesh(c.t, &meshconfig.MeshConfig{}, alwaysThere)}
	for _, edit := range edits {
		m.note(c.ours.Replace(edit))
	}
	m.rebuild(nil)
	for _, description := range crowdProxies {
		if complaint := e.tasteAs(e.plane, m.testMesh, c.proxy(description)); complaint != "" {
			return description + ": " + complaint
		}
	}
	return ""
}

// proxy is one of the crowd's, with an Envoy of the version that it is given to.
func (c tasting) proxy(description string) *translate.Proxy {
	if before, _, told := strings.Cut(description, "ENVOY_VERSION="); told {
		description = before + "ENVOY_VERSION=" + c.version
	}
	p := proxy(c.t, c.ours.Replace(description))
	p.HostsApart = c.version == testenv.EnvoyVersion // all of them: an Envoy has virtual hosts either apart or whole for as long as it runs
	return p
}

// tell tells the fewest edits that a new Envoy does not like what comes of.
func (c tasting) tell(edits []string) {
	c.t.Helper()
	complaint := c.taste(c.envoy(), edits)
	if complaint == "" {
		c.t.Log("a new Envoy takes it")
		return
	}
	for size := len(edits) / 2; size > 0; size /= 2 {
		for at := 0; at+size <= len(edits); {
			fewer := slices.Delete(slices.Clone(edits), at, at+size)
			if again := c.taste(c.envoy(), fewer); again != "" {
				edits, complaint = fewer, again
			} else {
				at += size
			}
		}
	}
	c.t.Errorf("%s, of\n%s", complaint, strings.Join(edits, "\n---\n"))
}
