package translate_test

import (
	"bytes"
	"encoding/base64"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
)

const pullSecretMesh = `
apiVersion: v1
kind: Secret
metadata: {name: images, namespace: back}
type: kubernetes.io/dockerconfigjson
data: {.dockerconfigjson: CONTENT}
---
apiVersion: v1
kind: Secret
metadata: {name: images, namespace: istio-system, annotations: {pilotfish.dev/service-accounts: puller}}
type: kubernetes.io/dockerconfigjson
data: {.dockerconfigjson: CONTENT}
---
apiVersion: extensions.istio.io/v1alpha1
kind: WasmPlugin
metadata: {name: own, namespace: back}
spec: {selector: {matchLabels: {app: a}}, url: "oci://registry.example/own:1", imagePullSecret: images}
---
apiVersion: extensions.istio.io/v1alpha1
kind: WasmPlugin
metadata: {name: all, namespace: istio-system}
spec: {url: "oci://registry.example/all:1", imagePullSecret: images}
`

// TestPullSecretsRequireAuthenticatedProxy . The order in which proxies are served does not matter.
func TestPullSecretsRequireAuthenticatedProxy(t *testing.T) {
	const marked = `{"auths": {"registry.example": {"username": "me", "password": "marked-as-secret"}}}`
	m := newTestMesh(t, nil, string(bytes.ReplaceAll([]byte(pullSecretMesh), []byte("CONTENT"), []byte(base64.StdEncoding.EncodeToString([]byte(marked))))))
	for range 2 {
		for description, want := range map[string]map[string]bool{
			"sidecar a.back 127.176.30.1 app=a SERVICE_ACCOUNT=a PROVEN=yes":           {"own": true, "all": false},
			"sidecar a.back 127.176.30.1 app=a SERVICE_ACCOUNT=a":                      {"own": false, "all": false},
			"sidecar b.back 127.176.30.1 app=a SERVICE_ACCOUNT=puller PROVEN=yes":      {"own": true, "all": true},
			"sidecar b.back 127.176.30.1 app=b SERVICE_ACCOUNT=puller PROVEN=yes":      {"all": true},
			"sidecar b.elsewhere 127.176.30.1 app=a SERVICE_ACCOUNT=puller PROVEN=yes": {"all": true},
			"sidecar b.elsewhere 127.176.30.1 app=a SERVICE_ACCOUNT=puller":            {"all": false},
		} {
			got, err := generate(m.snap, proxy(t, description), xds.ExtensionType, nil)
			if err != nil || len(got) != len(want) {
				t.Fatalf("%s: %d plugins, %v", description, len(got), err)
			}
			for name, has := range want {
				if namespace := map[string]string{"own": "back", "all": "istio-system"}[name]; bytes.Contains(find(t, got, "extensions.istio.io/wasmplugin/"+namespace+"."+name).Body.GetValue(), []byte("marked-as-secret")) != has {
					t.Errorf("%s: plugin %s contains the pull secret: want %t", description, name, has)
				}
			}
		}
	}
}

func find(t *testing.T, resources []*xds.Resource, name string) *xds.Resource {
	t.Helper()
	for _, r := range resources {
		if r.Name == name {
			return r
		}
	}
	t.Fatalf("no resource %s", name)
	return nil
}
