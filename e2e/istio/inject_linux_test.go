package istio

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	jsonpatch "github.com/evanphx/json-patch/v5"
	"go.yaml.in/yaml/v3"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// container is what of a container matters for running it.
type container struct {
	Name string
	Args []string
	Env  []struct {
		Name, Value string
		ValueFrom   struct {
			FieldRef         struct{ FieldPath string }
			ResourceFieldRef struct{ Resource string }
		}
	}
	VolumeMounts []struct{ MountPath string }
	Lifecycle    struct {
		PreStop struct{ Exec struct{ Command []string } }
	}
	ReadinessProbe struct {
		HTTPGet struct {
			Path string
			Port any
		}
	}
}

// injected is a pod as Istio's injector has changed it.
type injected struct {
	Metadata struct{ Annotations, Labels map[string]string }
	Spec     struct{ InitContainers, Containers []container }
}

func (i *injected) findContainer(t testing.TB, name string) container {
	t.Helper()
	for _, c := range append(i.Spec.InitContainers, i.Spec.Containers...) {
		if c.Name == name {
			return c
		}
	}
	t.Fatalf("the injector has made no container %s: %+v", name, i)
	return container{}
}

// layOutInjector writes the injector's files from Istio's installation, with the default values.
func (i *istiod) layOutInjector(t testing.TB) {
	t.Helper()
	read := func(name string) []byte {
		data, err := os.ReadFile(filepath.Join(filepath.Dir(istiodBinary(t)), name))
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	var chart struct {
		Defaults map[string]any `yaml:"_internal_defaults_do_not_set"`
	}
	if err := yaml.Unmarshal(read("values.yaml"), &chart); err != nil {
		t.Fatal(err)
	}
	all := chart.Defaults
	values, err := json.Marshal(object{"global": all["global"], "sidecarInjectorWebhook": all["sidecarInjectorWebhook"], "revision": "",
		"pilot": object{"cni": all["cni"], "env": all["env"]}, "gateways": all["gateways"]})
	if err != nil {
		t.Fatal(err)
	}
	config, err := yaml.Marshal(object{"policy": "enabled", "defaultTemplates": []string{"sidecar"}, "template": "",
		"templates": object{
			"sidecar": string(read("injection-template.yaml")), "gateway": string(read("gateway-injection-template.yaml"))}})
	if err != nil {
		t.Fatal(err)
	}
	i.write(t, "var/lib/istio/inject/values", string(values))
	i.write(t, "var/lib/istio/inject/config", string(config))
}

// inject has istiod's webhook change a pod, as the API server does.
func (i *istiod) inject(t testing.TB, pod object) (result *injected) {
	t.Helper()
	raw, err := json.Marshal(pod)
	if err != nil {
		t.Fatal(err)
	}
	review, err := json.Marshal(object{"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1",
		"request": object{"uid": "1", "namespace": books, "operation": "CREATE", "object": pod}})
	if err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, "istiod injects its sidecar", func() error {
		var answer struct {
			Response struct {
				Allowed bool
				Patch   []byte
				Status  object
			}
		}
		body, err := i.node.post("http://127.0.0.1:8080/inject", review)
		if err == nil {
			err = json.Unmarshal(body, &answer)
		}
		if err != nil || len(answer.Response.Patch) == 0 {
			return fmt.Errorf("%w: %s", err, body)
		}
		patch, err := jsonpatch.DecodePatch(answer.Response.Patch)
		if err != nil {
			return err
		}
		changed, err := patch.Apply(raw)
		if err != nil {
			return err
		}
		result = &injected{}
		return json.Unmarshal(changed, result)
	})
	return result
}

func (n *namespace) post(url string, body []byte) ([]byte, error) {
	client := http.Client{Transport: &http.Transport{DialContext: n.dial, DisableKeepAlives: true}}
	response, err := client.Post(url, "application/json", bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	var answer bytes.Buffer
	_, err = answer.ReadFrom(response.Body)
	return answer.Bytes(), err
}

// environment is the container's, with what a kubelet fills in.
func (p *pod) environment(t testing.TB, c container) (environment []string) {
	t.Helper()
	fields := map[string]string{
		"metadata.name": p.name, "metadata.namespace": books, "spec.serviceAccountName": p.account(), "spec.nodeName": "node-1",
		"status.podIP": p.address.String(), "status.hostIP": p.node.address.String(), "limits.cpu": "2", "limits.memory": "1073741824",
	}
	for _, e := range c.Env {
		value := e.Value
		if field := e.ValueFrom.FieldRef.FieldPath + e.ValueFrom.ResourceFieldRef.Resource; field != "" {
			known := false
			if value, known = fields[field]; !known {
				t.Fatalf("the injector wants %s for %s", field, e.Name)
			}
		}
		environment = append(environment, e.Name+"="+value)
	}
	return environment
}

// arguments are the container's, with the variables in them.
func arguments(c container, environment []string) (args []string) {
	var variables []string
	for _, e := range environment {
		name, value, _ := strings.Cut(e, "=")
		variables = append(variables, "$("+name+")", value)
	}
	replacer := strings.NewReplacer(variables...)
	for _, a := range c.Args {
		args = append(args, replacer.Replace(a))
	}
	return args
}

// TestPodLivesAsIstioInjectsIt: the tests use what the injector requires of the image and the kubelet. The agent does
// its part: it forwards the application's probe, runs the preStop hook and ends.
func TestPodLivesAsIstioInjectsIt(t *testing.T) {
	t.Parallel()
	m := newMesh(t, strict)
	p := m.reviews

	init := p.as.findContainer(t, "istio-init")
	if got := strings.Join(init.Args, " "); !strings.HasPrefix(got, "istio-iptables -p 15001 -z 15006 -u 1337 -m REDIRECT -i * -x  -b * -d 15090,15021,15020") {
		t.Errorf("the injector wants another redirection than these tests make: %s", got)
	}
	for _, mount := range p.proxy.VolumeMounts {
		if !slices.Contains(mounts, mount.MountPath) {
			t.Errorf("the injector mounts %s, of which these tests know nothing", mount.MountPath)
		}
	}

	probe := p.as.findContainer(t, p.name).ReadinessProbe.HTTPGet
	if fmt.Sprint(probe.Port) != "15020" {
		t.Fatalf("the injector has the kubelet probe %+v", probe)
	}
	if body, err := m.node.get("http://" + reviewsAddress + ":15020" + probe.Path); err != nil || !strings.HasPrefix(string(body), "reviews") {
		t.Errorf("the kubelet's probe of the application: %s, %v", body, err)
	}

	hook := p.proxy.Lifecycle.PreStop.Exec.Command
	if len(hook) < 2 || hook[0] != "pilot-agent" {
		t.Fatalf("the injector's hook is %q", hook)
	}
	output, ended := p.namespace.Start(t, p.command(t, hook[1:]...))
	<-ended
	testenv.Eventually(t, "the hook drains the proxy", func() error {
		code, body, err := m.node.request("http://" + reviewsAddress + ":15020/healthz/ready")
		if err != nil || code != http.StatusServiceUnavailable {
			return fmt.Errorf("%d %s %w, the hook said %s", code, body, err, output)
		}
		return nil
	})
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	<-p.ended
	if code := p.cmd.ProcessState.ExitCode(); code != 0 {
		t.Errorf("the agent's exit code is %d", code)
	}
}

// mounts are the places of what a kubelet mounts: volumes that are empty at first, and those that newPod fills.
var mounts = []string{
	"/var/run/secrets/workload-spiffe-uds", "/var/run/secrets/credential-uds", "/var/run/secrets/workload-spiffe-credentials",
	"/var/lib/istio/data", "/etc/istio/proxy", "/var/run/secrets/istio", "/var/run/secrets/istio/crl", "/var/run/secrets/tokens",
	"/etc/istio/pod",
}
