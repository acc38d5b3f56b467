package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	"github.com/pilotfish-mesh/pilotfish/cni/node"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// manifest contains the common fields of the example's objects, and the DaemonSet's pod.
type manifest struct {
	Kind     string
	Metadata struct{ Name, Namespace string }
	Rules    []struct{ Resources, Verbs []string }
	Spec     struct {
		Template struct {
			Spec struct {
				HostNetwork, HostPID bool
				Containers           []struct {
					Env          []struct{ Name, Value string }
					VolumeMounts []struct{ Name, MountPath string }
				}
				Volumes []struct {
					Name     string
					HostPath struct{ Path string }
				}
			}
		}
	}
}

func manifests(t *testing.T) map[string]manifest {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(testenv.Root(), "examples", "cni", "node-agent.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]manifest{}
	for decoder := yaml.NewDecoder(bytes.NewReader(text)); ; {
		// Kubernetes' keys are in camel case, for which the YAML library would need tags.
		var raw map[string]any
		err := decoder.Decode(&raw)
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		var m manifest
		fill(t, raw, &m)
		all[m.Kind] = m
	}
}

func TestManifestMatchesAgentDefaults(t *testing.T) {
	all := manifests(t)
	pod := all["DaemonSet"].Spec.Template.Spec
	if !pod.HostNetwork || !pod.HostPID {
		t.Error("the agent needs the node's network and processes")
	}
	s, f := &settings{}, pflag.NewFlagSet("test", pflag.ContinueOnError)
	s.register(f)
	for _, e := range pod.Containers[0].Env {
		known := e.Name == "NODE_NAME"
		f.VisitAll(func(flag *pflag.Flag) { known = known || variable(flag.Name) == e.Name })
		if !known {
			t.Errorf("the manifest sets %s, which is not a setting", e.Name)
		}
	}
	var mounted []string
	for _, m := range pod.Containers[0].VolumeMounts {
		mounted = append(mounted, m.MountPath)
	}
	for _, path := range append(s.binDirs, s.confDir, s.runDir, filepath.Dir(s.resultsDir)) {
		if !slices.Contains(mounted, path) {
			t.Errorf("%s is not mounted", path)
		}
	}
	for _, v := range pod.Volumes { // the plugin reads the agent's files at the same path on the node
		if v.Name == "run" && v.HostPath.Path != s.runDir {
			t.Errorf("the run directory is %s on the node", v.HostPath.Path)
		}
	}
	if all["DaemonSet"].Metadata.Name != s.daemonSet {
		t.Error("the manifest's DaemonSet does not have the name that the agent looks up")
	}
	for _, verb := range []string{"get", "list", "watch"} {
		if !slices.Contains(all["ClusterRole"].Rules[0].Verbs, verb) {
			t.Errorf("the agent lacks the permission to %s pods", verb)
		}
	}
}

func TestDocumentationListsEverySettingAndMetric(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(testenv.Root(), "docs", "cni.md"))
	if err != nil {
		t.Fatal(err)
	}
	f := pflag.NewFlagSet("test", pflag.ContinueOnError)
	new(settings).register(f)
	f.VisitAll(func(flag *pflag.Flag) {
		if !flag.Hidden && !strings.Contains(string(text), "`--"+flag.Name+"`") {
			t.Errorf("docs/cni.md does not contain --%s", flag.Name)
		}
	})
	for _, name := range node.MetricNames() {
		if !strings.Contains(string(text), "`"+name+"`") {
			t.Errorf("docs/cni.md does not contain %s", name)
		}
	}
}

// fill decodes as Kubernetes does, through JSON.
func fill(t *testing.T, raw map[string]any, into any) {
	t.Helper()
	text, err := json.Marshal(raw)
	if err == nil {
		err = json.Unmarshal(text, into)
	}
	if err != nil {
		t.Fatal(err)
	}
}
