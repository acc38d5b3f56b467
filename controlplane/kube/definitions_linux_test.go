package kube

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/internal/testcluster"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// readDefinitions returns Istio's CustomResourceDefinitions, as the module of Istio's API contains them.
var readDefinitions = sync.OnceValues(func() (string, error) {
	cmd := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "istio.io/api")
	cmd.Dir = testenv.Root()
	out, err := cmd.Output()
	if err != nil {
		return "", err
	}
	text, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(out)), "kubernetes", "customresourcedefinitions.gen.yaml"))
	return string(text), err
})

// applyDefinitions creates Istio's CustomResourceDefinitions in a cluster and waits until it serves them.
func applyDefinitions(t *testing.T, cluster *testcluster.Cluster) {
	t.Helper()
	text, err := readDefinitions()
	if err != nil {
		t.Fatal(err)
	}
	for _, crd := range cluster.Apply(t, text) {
		awaitEstablished(t, cluster, crd.Name())
	}
}

func awaitEstablished(t *testing.T, cluster *testcluster.Cluster, name string) {
	t.Helper()
	cluster.WaitForObject(t, "the definition "+name+" is established", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/"+name, func(o testcluster.Object) error {
		conditions, _ := o.Get("status", "conditions").([]any)
		for _, c := range conditions {
			if c := testcluster.Object(c.(map[string]any)); c.Text("type") == "Established" && c.Text("status") == "True" {
				return nil
			}
		}
		return os.ErrNotExist
	})
}
