package mesh

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	meshconfig "istio.io/api/mesh/v1alpha1"

	"github.com/pilotfish-mesh/pilotfish/mesh/topology"
)

type rotatingIssuer struct{ roots string }

func (i *rotatingIssuer) IssueToken(string, string, time.Duration) (string, error) {
	return "token", nil
}
func (i *rotatingIssuer) RootPEM() []byte { return []byte(i.roots) }

// An agent reads its roots for every connection, and must never read a partial file.
func TestAgentRootsFollowCA(t *testing.T) {
	issuer := &rotatingIssuer{roots: "old"}
	s := &sidecarFiles{dir: t.TempDir(), instance: &topology.Instance{Workload: &topology.Workload{}}, mesh: &meshconfig.MeshConfig{}, issuer: issuer}
	if err := s.write(); err != nil {
		t.Fatal(err)
	}
	for _, roots := range []string{"old", "old and new", "new"} {
		issuer.roots = roots
		if err := s.renewRoots(); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(filepath.Join(s.dir, rootCertPath)); err != nil || string(got) != roots {
			t.Errorf("the agent has %q, want %q: %v", got, roots, err)
		}
	}
}
