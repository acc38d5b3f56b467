package topology

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

func TestMeshConfigCanBeInSeparateFile(t *testing.T) {
	for name, c := range map[string]struct{ spec, file, want string }{
		"read":              {"", "trustDomain: shop.example\naccessLogFile: /dev/stdout\n", ""},
		"unknown field":     {"", "accesLogFile: /dev/stdout\n", "did you mean accessLogFile"},
		"two trust domains": {"trustDomain: other.example, ", "trustDomain: shop.example\n", `spec.mesh.trustDomain has another value, "shop.example"`},
		"no such file":      {"", "", "cannot be read"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			topology := filepath.Join(dir, "mesh.yaml")
			text := "apiVersion: pilotfish.dev/v1alpha1\nkind: Mesh\nmetadata: {name: shop}\nspec: {" + c.spec + "mesh: mesh-config.yaml, workloads: []}\n"
			if err := os.WriteFile(topology, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			file := filepath.Join(dir, "mesh-config.yaml")
			if c.file != "" {
				if err := os.WriteFile(file, []byte(c.file), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			got, err := Load(topology)
			if c.want != "" {
				if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), topology+":4:") {
					t.Fatalf("got %v, want %q at its place", err, c.want)
				}
				return
			}
			if err != nil || got.MeshFile != file || got.Mesh.GetAccessLogFile() != "/dev/stdout" || got.TrustDomain != "shop.example" {
				t.Fatalf("got %+v, %v", got, err)
			}
		})
	}
}

// Fields in a separate file are checked by the control plane, not here.
func TestMeshConfigFieldsWithoutEffectAreReported(t *testing.T) {
	topology := filepath.Join(t.TempDir(), "mesh.yaml")
	text := `apiVersion: pilotfish.dev/v1alpha1
kind: Mesh
metadata: {name: shop}
spec:
  mesh:
    accessLogFile: /dev/stdout
    ingressClass: x
    extensionProviders:
    - name: a
      opentelemetry:
        service: a.b
        port: 1
        resource_detectors: {environment: {}}
  workloads: []
`
	if err := os.WriteFile(topology, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := Load(topology)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]int{"spec.mesh.ingressClass": 7, "spec.mesh.extensionProviders[0].opentelemetry.resourceDetectors": 13}
	for _, p := range got.MeshProblems {
		if p.Code != config.NoEffect || p.At.File != topology || want[p.Field] != p.At.Line {
			t.Errorf("got %v for %s", p, p.Field)
		}
		delete(want, p.Field)
	}
	if len(want) > 0 {
		t.Errorf("no problem %v", want)
	}
}

func TestInvalidMeshConfigIsRefusedWithPosition(t *testing.T) {
	for name, mesh := range map[string]string{"in the topology": "{proxyHttpPort: 70000}", "in a file": "mesh-config.yaml"} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			topology := filepath.Join(dir, "mesh.yaml")
			for file, text := range map[string]string{
				topology:                               "apiVersion: pilotfish.dev/v1alpha1\nkind: Mesh\nmetadata: {name: shop}\nspec: {workloads: [],\n  mesh: " + mesh + "}\n",
				filepath.Join(dir, "mesh-config.yaml"): "proxyHttpPort: 70000\n",
			} {
				if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			_, err := Load(topology)
			if err == nil || !strings.Contains(err.Error(), topology+":5:") || !strings.Contains(err.Error(), "proxyHttpPort") || strings.Count(err.Error(), "70000") != 1 {
				t.Errorf("got %v", err)
			}
		})
	}
}
