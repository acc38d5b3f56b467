package sandbox

import (
	"strings"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/cni/agentapi"
)

const bridgeOnly = `{"cniVersion":"1.0.0","name":"pods","plugins":[{"type":"bridge","bridge":"pods","isGateway":true,
 "ipam":{"type":"host-local","dataDir":"DIR/ipam","ranges":[[{"subnet":"10.88.0.0/16"}],[{"subnet":"fd88::/64"}]]}}]}`

func TestPodsOfTheTestNodeReachThemselves(t *testing.T) {
	n := newNode(t, bridgeOnly)
	pod := n.mustRun(t, &agentapi.Pod{Metadata: agentapi.Metadata{Name: "web", Namespace: "shop", UID: "u1"}})
	app := pod.start(t, container{name: "app", args: []string{"/podapp", "serve", ":8080"}, user: 1000})
	answer, err := pod.exec(t.Context(), app, "/podapp", "get", "http://"+pod.addresses[0].String()+":8080/")
	if err != nil || !strings.HasPrefix(answer, "200 through=[] host=web") {
		t.Errorf("answered %q (%v)", answer, err)
	}
	if err := pod.remove(t.Context()); err != nil {
		t.Error(err)
	}
}
