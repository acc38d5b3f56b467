package controlplane_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/controlplane"
	"github.com/pilotfish-mesh/pilotfish/controlplane/consul"
	"github.com/pilotfish-mesh/pilotfish/internal/consultest"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

const consulInstance = `{"Name": "orders", "ID": %q, "Address": %q, "Port": 9080, "Tags": ["version=%s"], "Meta": {"protocol": "http"}, "Check": {"TTL": "1h", "Status": "passing"}}`

// consulRule routes requests to all instances, or to a subset. The bookshop's proxies have no certificates.
const consulRule = `
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: orders, namespace: consul}
spec: {host: orders.service.consul, trafficPolicy: {tls: {mode: DISABLE}}, subsets: [{name: v2, labels: {version: v2}}]}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: orders, namespace: consul}
spec: {hosts: [orders.service.consul], http: [{route: [{destination: {host: orders.service.consul, %s}}]}]}
`

// awaitFailure waits until a call to host fails with an error that begins with want.
func (b *bookshop) awaitFailure(host, want string) {
	b.t.Helper()
	testenv.Eventually(b.t, host+" fails with "+want, func() error {
		body, err := b.call(host)
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			return fmt.Errorf("answered %q, %v", body, err)
		}
		return nil
	})
}

func TestEnvoyReachesServicesOfConsul(t *testing.T) {
	server := consultest.Start(t, "127.71.2.1", "", nil)
	b := newBookshop(t, "127.68.27", testenv.EnvoyVersion)
	b.workload("orders-v1", "127.68.27.20")
	b.workload("orders-v2", "127.68.27.21")
	b.awaitBody("reviews", "reviews-v1")
	b.plane.stop()
	rule := filepath.Join(b.dir, "orders.yaml")
	write(t, rule, fmt.Sprintf(consulRule, ""))
	b.cfg.Consul = consul.Config{Address: server.Address}
	b.cfg.Ports = controlplane.Ports{}
	b.plane = start(t, b.cfg)
	const host = "orders.service.consul"

	server.Register(fmt.Sprintf(consulInstance, "orders-1", "127.68.27.20", "v1"))
	b.awaitBody(host, "orders-v1")
	server.Register(fmt.Sprintf(consulInstance, "orders-2", "127.68.27.21", "v2"))
	write(t, rule, fmt.Sprintf(consulRule, "subset: v2"))
	b.awaitBody(host, "orders-v2")
	server.Put("/v1/agent/check/fail/service:orders-2", "")
	b.awaitFailure(host, "status 503")
	server.Put("/v1/agent/check/pass/service:orders-2", "")
	b.awaitBody(host, "orders-v2")

	server.Kill()
	b.plane.awaitProblem("[PF0013]")
	b.awaitSync()
	b.awaitBody(host, "orders-v2")
	server.Run()
	server.Register(fmt.Sprintf(consulInstance, "orders-1", "127.68.27.20", "v2"))
	server.Put("/v1/agent/check/pass/service:orders-1", "") // a restarted agent requires it again
	server.Put("/v1/agent/service/deregister/orders-2", "")
	b.awaitBody(host, "orders-v1")
	server.Put("/v1/agent/service/deregister/orders-1", "")
	b.awaitFailure(host, "status 50")
}
