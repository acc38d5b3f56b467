package kubernetes

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// envoyConfig is a minimal sidecar configuration that marks requests, so that tests recognize which Envoys they passed.
const envoyConfig = `
admin: {address: {socket_address: {address: 127.0.0.1, port_value: 15000}}}
static_resources:
  listeners:
  - name: outbound
    address: {socket_address: {address: "::", ipv4_compat: true, port_value: 15001}}
    listener_filters: [&dst {name: original_dst, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.listener.original_dst.v3.OriginalDst}}]
    filter_chains: [{filters: [{name: http, typed_config: {
      "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager,
      stat_prefix: outbound, http_filters: [&router {name: router, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}],
      route_config: {response_headers_to_add: [{header: {key: x-through, value: outbound}}],
        virtual_hosts: [{name: all, domains: ["*"], routes: [{match: {prefix: /}, route: {cluster: outbound}}]}]}}}]}]
  - name: inbound
    address: {socket_address: {address: "::", ipv4_compat: true, port_value: 15006}}
    transparent: false
    listener_filters: [*dst]
    filter_chains: [{filters: [{name: http, typed_config: {
      "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager,
      stat_prefix: inbound, http_filters: [*router],
      route_config: {response_headers_to_add: [{header: {key: x-through, value: inbound}}],
        virtual_hosts: [{name: all, domains: ["*"], routes: [{match: {prefix: /}, route: {cluster: inbound}}]}]}}}]}]
  clusters:
  - {name: outbound, type: ORIGINAL_DST, lb_policy: CLUSTER_PROVIDED, connect_timeout: 2s}
  - {name: inbound, type: ORIGINAL_DST, lb_policy: CLUSTER_PROVIDED, connect_timeout: 2s,
     upstream_bind_config: {source_address: {address: 127.0.0.6, port_value: 0}, extra_source_addresses: [{address: {address: "::6", port_value: 0}}]}}
`

// transparentConfig is the same for a pod that is captured by TPROXY: who calls is seen as it is.
func transparentConfig() string {
	const bind = ",\n     upstream_bind_config: "
	before, _, _ := strings.Cut(envoyConfig, bind)
	return strings.NewReplacer("transparent: false", "transparent: true", "listener_filters: [*dst]",
		`listener_filters: [*dst, {name: original_src, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.listener.original_src.v3.OriginalSrc, mark: 1337}}]`,
	).Replace(before) + "}\n"
}

type object = map[string]any

// pod is a pod that serves, and has no sidecar.
func pod(name string, args ...string) object {
	if len(args) == 0 {
		args = []string{"/podapp", "serve", ":8080"}
	}
	return object{
		"apiVersion": "v1", "kind": "Pod",
		"metadata": object{"name": name, "namespace": "default", "labels": object{"app": name}},
		"spec": object{
			"terminationGracePeriodSeconds": 1,
			"containers": []any{object{
				"name": "app", "image": podImage, "command": args, "imagePullPolicy": "Never",
				"securityContext": object{"runAsUser": 1000, "runAsGroup": 1000},
			}},
		},
	}
}

// injected is the same pod as an injector leaves it, with a container in the sidecar's place that runs these arguments.
func injected(p object, sidecar object, annotations ...string) object {
	notes := object{"sidecar.istio.io/status": "{}"}
	for i := 0; i+1 < len(annotations); i += 2 {
		notes[annotations[i]] = annotations[i+1]
	}
	p["metadata"].(object)["annotations"] = notes
	spec := p["spec"].(object)
	spec["containers"] = append(spec["containers"].([]any), sidecar)
	return p
}

// idleSidecar replaces a proxy and does not listen: captured connections are refused.
func idleSidecar() object {
	return object{
		"name": "istio-proxy", "image": podImage, "command": []string{"/podapp"}, "args": []string{"proxy", "sidecar"}, "imagePullPolicy": "Never",
		"securityContext": object{"runAsUser": 1337, "runAsGroup": 1337},
	}
}

// envoySidecar runs a real Envoy from the test's machine, with the libraries that it needs.
func (c *cluster) envoySidecar(t *testing.T, p object) object {
	t.Helper()
	return c.envoyWith(t, p, envoyConfig)
}

func (c *cluster) envoyWith(t *testing.T, p object, text string) object {
	t.Helper()
	config := filepath.Join(c.dir, p["metadata"].(object)["name"].(string)+".yaml")
	if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	envoy, err := filepath.EvalSymlinks(testenv.Envoy(t))
	if err != nil {
		t.Fatal(err)
	}
	var volumes, mounts []any
	for i, path := range [][2]string{{envoy, "/envoy"}, {config, "/envoy.yaml"}, {"/lib", "/lib"}, {"/lib64", "/lib64"}} {
		real, err := filepath.EvalSymlinks(path[0])
		if err != nil {
			t.Fatal(err)
		}
		name := fmt.Sprint("host", i)
		volumes = append(volumes, object{"name": name, "hostPath": object{"path": real}})
		mounts = append(mounts, object{"name": name, "mountPath": path[1], "readOnly": true})
	}
	p["spec"].(object)["volumes"] = volumes
	sidecar := idleSidecar()
	sidecar["command"] = []string{"/envoy", "-c", "/envoy.yaml", "--log-level", "warning", "--concurrency", "1", "--disable-hot-restart"}
	sidecar["args"] = []string{}
	sidecar["volumeMounts"] = mounts
	return sidecar
}

// dualStack is a proxy of a mesh of both families.
func dualStack(sidecar object) object {
	sidecar["env"] = []any{object{"name": "ISTIO_DUAL_STACK", "value": "true"}}
	return sidecar
}

// create creates a pod and deletes it at the end of the test.
func (c *cluster) create(t *testing.T, p object) (name string) {
	t.Helper()
	text, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	c.apply(t, string(text))
	name = p["metadata"].(object)["name"].(string)
	t.Cleanup(func() {
		if _, err := c.kubectl("delete", "pod", name, "--ignore-not-found", "--timeout=110s"); err != nil {
			t.Error(err)
		}
	})
	return name
}

// createRunning creates a pod, waits until all of its containers run, and returns its name and address.
func (c *cluster) createRunning(t *testing.T, p object) (name, address string) {
	t.Helper()
	name = c.create(t, p)
	c.waitFor(t, "pod "+name+" runs", func() error {
		return c.checkField("pod/"+name, `{.status.conditions[?(@.type=="Ready")].status}`, "True")
	})
	return name, c.mustKubectl(t, "get", "pod", name, "-o", "jsonpath={.status.podIP}")
}

// get sends a request from a pod, as its application. It returns the response, or the error as text.
func (c *cluster) get(pod, address string) string {
	answer, err := c.kubectl("exec", pod, "-c", "app", "--", "/podapp", "get", "http://"+address+":8080/")
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(answer)
}

// addresses returns the addresses of a pod, the IPv6 one in brackets as in a URL.
func (c *cluster) addresses(t *testing.T, pod string) (ipv4, ipv6 string) {
	t.Helper()
	ips := strings.Fields(c.mustKubectl(t, "get", "pod", pod, "-o", "jsonpath={.status.podIPs[*].ip}"))
	if len(ips) != 2 {
		t.Fatalf("pod %s has the addresses %v", pod, ips)
	}
	return ips[0], "[" + ips[1] + "]"
}

// waitAnswer waits until an answer begins like this.
func (c *cluster) waitAnswer(t *testing.T, what, pod, address, want string) {
	t.Helper()
	c.waitFor(t, what, func() error {
		if answer := c.get(pod, address); !strings.HasPrefix(answer, want) {
			return errors.New(answer)
		}
		return nil
	})
}

// waitEvent waits for an event of a pod that has the text.
func (c *cluster) waitEvent(t *testing.T, pod, text string) {
	t.Helper()
	c.waitFor(t, "an event of pod "+pod+" that says "+text, func() error {
		out, err := c.kubectl("get", "events", "--field-selector", "involvedObject.name="+pod, "-o", "jsonpath={range .items[*]}{.type} {.reason} {.message}{\"\\n\"}{end}")
		if err == nil && !strings.Contains(out, text) {
			err = errors.New(out)
		}
		return err
	})
}
