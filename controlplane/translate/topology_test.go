package translate_test

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/structpb"
	meshconfig "istio.io/api/mesh/v1alpha1"

	"github.com/pilotfish-mesh/pilotfish/controlplane/translate"
	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
)

// TestGatewayTrustsConfiguredProxies: the ProxyConfig of a gateway, or else that of the mesh, determines the client
// address and the handling of the certificate header. Without either, the gateway trusts no front proxy.
func TestGatewayTrustsConfiguredProxies(t *testing.T) {
	trusting := map[string]any{"numTrustedProxies": 2.0, "forwardClientCertDetails": "APPEND_FORWARD", "later": true}
	for _, c := range []struct {
		name string
		mesh *meshconfig.MeshConfig
		node any
		want []string
		not  string
	}{
		{name: "nobody", want: []string{"forwardClientCertDetails: SANITIZE_SET"}, not: "xffNumTrustedHops"},
		{name: "its own", node: trusting, want: []string{"xffNumTrustedHops: 2", "forwardClientCertDetails: APPEND_FORWARD"}},
		{name: "the mesh's", mesh: &meshconfig.MeshConfig{DefaultConfig: &meshconfig.ProxyConfig{GatewayTopology: &meshconfig.Topology{NumTrustedProxies: 1}}},
			want: []string{"xffNumTrustedHops: 1", "forwardClientCertDetails: SANITIZE_SET"}},
		{name: "the gateway's ProxyConfig takes precedence", node: map[string]any{}, mesh: &meshconfig.MeshConfig{DefaultConfig: &meshconfig.ProxyConfig{GatewayTopology: &meshconfig.Topology{NumTrustedProxies: 1}}},
			not: "xffNumTrustedHops"},
		{name: "nonsense", node: map[string]any{"numTrustedProxies": "many"}, not: "xffNumTrustedHops"},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := node(t, "router edge.default 127.194.1.2 app=edge")
			if c.node != nil {
				value, err := structpb.NewValue(map[string]any{"gatewayTopology": c.node})
				if err != nil {
					t.Fatal(err)
				}
				n.Metadata.Fields["PROXY_CONFIG"] = value
			}
			p, err := translate.ParseProxy(n, "")
			if err != nil {
				t.Fatal(err)
			}
			mesh := newTestMesh(t, c.mesh, `
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: edge, namespace: default}
spec: {selector: {app: edge}, servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: ["*"]}]}
`)
			got, err := generate(mesh.snap, p, xds.ListenerType, nil)
			if err != nil || len(got) == 0 {
				t.Fatalf("%v %v", got, err)
			}
			var text string
			for _, r := range got {
				text += renderResource(t, r)
			}
			for _, want := range c.want {
				if !strings.Contains(text, want) {
					t.Errorf("the configuration lacks %q", want)
				}
			}
			if c.not != "" && strings.Contains(text, c.not) {
				t.Errorf("the configuration contains %q", c.not)
			}
		})
	}
}
