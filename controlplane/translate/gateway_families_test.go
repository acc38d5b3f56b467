package translate_test

import (
	"fmt"
	"slices"
	"testing"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/translate"
)

const twoServers = `
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: gw, namespace: edge}
spec:
  selector: {istio: edge}
  servers:
  - {port: {number: 80, name: http, protocol: HTTP}, hosts: ["*"]}
  - {port: {number: 81, name: bound, protocol: HTTP}, hosts: ["*"], bind: 0.0.0.0}
`

func TestGatewayAddressFamilies(t *testing.T) {
	m := newTestMesh(t, nil, twoServers)
	const four, six = "192.0.2.9", "2001:db8::9"
	for addresses, want := range map[string][]string{
		four:             {"0.0.0.0:80", "0.0.0.0:81"},
		six:              {"0.0.0.0:81", ":::80"},
		four + "," + six: {"0.0.0.0:80", "0.0.0.0:81", ":::80"},
		six + "," + four: {"0.0.0.0:80", "0.0.0.0:81", ":::80"},
	} {
		listeners, err := translate.Listeners(m.snap, proxy(t, "router gw.edge "+four+" istio=edge INTERCEPTION_MODE= INSTANCE_IPS="+addresses))
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, r := range listeners {
			var l listenerv3.Listener
			if err := r.Body.UnmarshalTo(&l); err != nil {
				t.Fatal(err)
			}
			at := l.Address.GetSocketAddress()
			got = append(got, fmt.Sprintf("%s:%d", at.GetAddress(), at.GetPortValue()))
			for _, a := range l.AdditionalAddresses {
				at := a.GetAddress().GetSocketAddress()
				got = append(got, fmt.Sprintf("%s:%d", at.GetAddress(), at.GetPortValue()))
			}
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("with %s: %v, want %v", addresses, got, want)
		}
	}
}
