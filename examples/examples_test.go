package examples

import (
	"io/fs"
	"path"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/mesh/topology"
)

func TestTopologyExampleIsReadWithoutFindings(t *testing.T) {
	for name, workloads := range map[string]int{"bookshop": 8, "no-sidecar": 4} {
		topology, err := topology.Load(path.Join(name, "mesh.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		if topology.Name != name || len(topology.Workloads) != workloads {
			t.Errorf("got mesh %q with %d workloads", topology.Name, len(topology.Workloads))
		}
	}
}

func TestConfigurationExampleIsReadWithoutFindings(t *testing.T) {
	names, err := fs.Glob(Bookshop(), "config/*.yaml")
	if err != nil || len(names) == 0 {
		t.Fatalf("no configuration: %v, %v", names, err)
	}
	seen := map[config.Key]string{}
	for _, name := range names {
		data, err := fs.ReadFile(Bookshop(), name)
		if err != nil {
			t.Fatal(err)
		}
		resources, problems := config.Parse(path.Base(name), data)
		for _, p := range problems {
			t.Errorf("%v", p)
		}
		for _, r := range resources {
			if other, ok := seen[r.Key]; ok {
				t.Errorf("%v is in %s and in %s", r.Key, other, name)
			}
			seen[r.Key] = name
		}
	}
	if len(seen) < 16 {
		t.Errorf("only %d resources were read", len(seen))
	}
}
