package translate_test

import (
	"testing"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/translate"
)

const unservedHeadless = `
apiVersion: v1
kind: Service
metadata: {name: db, namespace: one}
spec: {clusterIP: None, selector: {app: db}, ports: [{name: tcp-db, port: 3306}]}
`

// Envoy refuses a listener without filter chains, which would be told as an error of a document that has none.
func TestAHeadlessServiceThatIsServedNowhereMakesNoListener(t *testing.T) {
	for what, more := range map[string]string{"nowhere": "", "somewhere": `
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: db-0, namespace: one}
spec: {address: 127.203.40.2, labels: {app: db}}
`} {
		m := newTestMesh(t, nil, unservedHeadless, more)
		listeners, err := translate.Listeners(m.snap, proxy(t, "sidecar a-1.one 127.203.41.1 app=a INTERCEPTION_MODE=REDIRECT"))
		if err != nil {
			t.Fatal(err)
		}
		found := false
		for _, r := range listeners {
			var l listenerv3.Listener
			if err := r.Body.UnmarshalTo(&l); err != nil {
				t.Fatal(err)
			}
			found = found || l.Address.GetSocketAddress().GetPortValue() == 3306
			if len(l.FilterChains) == 0 && l.DefaultFilterChain == nil {
				t.Errorf("served %s: listener %s has nothing for anybody", what, l.Name)
			}
		}
		if found != (what == "somewhere") {
			t.Errorf("served %s: there is a listener for its port: %v", what, found)
		}
	}
}
