package consul

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/internal/consultest"
	"github.com/pilotfish-mesh/pilotfish/internal/dial"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
	"github.com/pilotfish-mesh/pilotfish/internal/testpki"
)

const webOne = `{"Name": "web", "ID": "web-1", "Address": "10.0.0.1", "Port": 8080, "Tags": ["v1"], "Meta": {"protocol": "http"}, "Check": {"TTL": "1h", "Status": "passing"}}`

// passWebOne is the path of the request that makes the check of webOne pass. A restarted agent requires it again.
const passWebOne = "/v1/agent/check/pass/service:web-1"

func TestServicesOfConsulAreFollowed(t *testing.T) {
	c := consultest.Start(t, "127.71.1.1", "", nil)
	s, _ := run(t, Config{Address: c.Address}, true)
	await(t, s, "the catalog has no service of the mesh", map[string]string{})
	for _, step := range []struct {
		what, path, body string
		want             map[string]string
	}{
		{"register", "/v1/agent/service/register", webOne, map[string]string{"web.service.consul": "10.0.0.1"}},
		{"register another", "/v1/agent/service/register", strings.NewReplacer("web-1", "web-2", "10.0.0.1", "10.0.0.2").Replace(webOne), map[string]string{"web.service.consul": "10.0.0.1 10.0.0.2"}},
		{"change the address", "/v1/agent/service/register", strings.Replace(webOne, "10.0.0.1", "10.0.0.3", 1), map[string]string{"web.service.consul": "10.0.0.3 10.0.0.2"}},
		{"critical", "/v1/agent/check/fail/service:web-1", "", map[string]string{"web.service.consul": "10.0.0.2"}},
		{"warning", "/v1/agent/check/warn/service:web-1", "", map[string]string{"web.service.consul": "10.0.0.2"}},
		{"passing again", passWebOne, "", map[string]string{"web.service.consul": "10.0.0.3 10.0.0.2"}},
		{"maintenance of a service", "/v1/agent/service/maintenance/web-2?enable=true", "", map[string]string{"web.service.consul": "10.0.0.3"}},
		{"maintenance of the node", "/v1/agent/maintenance?enable=true", "", map[string]string{"web.service.consul": ""}},
		{"end of maintenance", "/v1/agent/maintenance?enable=false", "", map[string]string{"web.service.consul": "10.0.0.3"}},
		{"deregister one", "/v1/agent/service/deregister/web-1", "", map[string]string{"web.service.consul": ""}},
		{"deregister all", "/v1/agent/service/deregister/web-2", "", map[string]string{}},
	} {
		c.Put(step.path, step.body)
		await(t, s, step.what, step.want)
	}
	if problems := s.Problems(); len(problems) > 0 {
		t.Errorf("problems are %v", problems)
	}
}

func TestRestartOfConsulIsSurvived(t *testing.T) {
	c := consultest.Start(t, "127.71.1.2", "", nil)
	c.Register(webOne)
	s, _ := run(t, Config{Address: c.Address}, true)
	want := map[string]string{"web.service.consul": "10.0.0.1"}
	await(t, s, "the service is known", want)
	c.Kill()
	awaitHealth(t, s, "its last known services stay in force")
	awaitHealth(t, s, "connection refused")
	await(t, s, "the service is still known", want)
	c.Run()
	awaitHealth(t, s, "")
	c.Register(strings.Replace(webOne, "10.0.0.1", "10.0.0.4", 1))
	c.Put(passWebOne, "")
	await(t, s, "the change arrives", map[string]string{"web.service.consul": "10.0.0.4"})
}

// A new server has lost all state, and its indexes are lower.
func TestReplacedConsulIsFollowed(t *testing.T) {
	c := consultest.Start(t, "127.71.1.3", "", nil)
	for i := range 20 { // increases the index
		c.Register(strings.ReplaceAll(webOne, "web", fmt.Sprintf("web%d", i)))
	}
	s, _ := run(t, Config{Address: c.Address}, true)
	testenv.Eventually(t, "all services are known", func() error {
		if n := len(s.List(config.ServiceEntry)); n != 20 {
			return fmt.Errorf("%d services are known", n)
		}
		return nil
	})
	c.Kill()
	awaitHealth(t, s, "connection refused")
	next := consultest.Start(t, "127.71.1.3", "", nil)
	next.Register(webOne)
	await(t, s, "only the new service is known", map[string]string{"web.service.consul": "10.0.0.1"})
	next.Register(strings.Replace(webOne, "10.0.0.1", "10.0.0.5", 1))
	await(t, s, "changes arrive", map[string]string{"web.service.consul": "10.0.0.5"})
}

func TestAccessControlAndTLSOfConsul(t *testing.T) {
	authority := testpki.New(t, "consul")
	dir := t.TempDir()
	write := func(name string, text []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	cert, key := authority.Server(t, "server.dc1.consul")
	clientCert, clientKey := authority.Workload(t, "spiffe://cluster.local/ns/istio-system/sa/control-plane")
	root := write("root.pem", authority.PEM())
	const management = "11111111-2222-3333-4444-555555555555"
	c := consultest.Start(t, "127.71.1.4", management, map[string]any{
		"acl":       map[string]any{"enabled": true, "default_policy": "deny", "tokens": map[string]any{"initial_management": management, "agent": management, "default": ""}},
		"ports":     map[string]any{"dns": -1, "grpc": -1, "https": 8501},
		"tls":       map[string]any{"https": map[string]any{"ca_file": root, "cert_file": write("cert.pem", cert), "key_file": write("key.pem", key), "verify_incoming": true}},
		"node_name": "machine",
	})
	c.Register(webOne)
	c.Register(`{"Name": "secret", "Address": "10.0.0.9", "Port": 1}`)
	c.Put("/v1/acl/policy", `{"Name": "web", "Rules": "service \"web\" { policy = \"read\" } node_prefix \"\" { policy = \"read\" }"}`)
	c.Put("/v1/acl/policy", `{"Name": "no-nodes", "Rules": "service \"web\" { policy = \"read\" }"}`)
	token := func(policies string) string {
		var created struct{ SecretID string }
		if err := json.Unmarshal([]byte(c.Put("/v1/acl/token", `{"Policies": [`+policies+`]}`)), &created); err != nil {
			t.Fatal(err)
		}
		return created.SecretID
	}
	file := write("token", []byte(token(`{"Name": "web"}`)))
	cfg := Config{Address: "https://127.71.1.4:8501", TokenFile: file, TLS: dial.TLS{
		RootFile: root, ServerName: "server.dc1.consul", CertFile: write("client.pem", clientCert), KeyFile: write("client-key.pem", clientKey),
	}}
	s, stop := run(t, cfg, true)
	want := map[string]string{"web.service.consul": "10.0.0.1"}
	await(t, s, "the permitted service is known", want)
	awaitProblem(t, s, "Consul hides services that the token may not read")
	if !s.client.multiplexes.Load() {
		t.Error("the source does not use HTTP/2 with TLS")
	}
	for _, bad := range []struct{ token, want string }{
		{"00000000-1111-2222-3333-444444444444", "ACL not found (check the token in --consul-token-file); its last known services stay in force"},
		{token(""), "the token may not read it: Consul requires service:read and node:read; its last known services stay in force"},
	} {
		write("token", []byte(bad.token))
		c.Register(strings.Replace(webOne, "10.0.0.1", "10.0.0.2", 1)) // ends the blocking queries
		awaitHealth(t, s, bad.want)
		await(t, s, "the service is still known", want)
		c.Register(webOne)
		write("token", []byte(token(`{"Name": "web"}`)))
		awaitHealth(t, s, "")
	}
	stop()

	write("token", []byte(token(`{"Name": "no-nodes"}`)))
	s, _ = run(t, cfg, false)
	awaitProblem(t, s, "the token may not read it")
	cfg.TLS.CertFile, cfg.TLS.KeyFile = "", ""
	s, _ = run(t, cfg, false)
	awaitHealth(t, s, "tls: ")
}

func TestDatacentersAreClusters(t *testing.T) {
	first := consultest.Start(t, "127.71.1.5", "", nil)
	second := consultest.Start(t, "127.71.1.6", "", map[string]any{"datacenter": "dc2", "node_name": "far", "retry_join_wan": []string{"127.71.1.5"}})
	first.Register(webOne)
	second.Register(strings.Replace(webOne, "10.0.0.1", "10.2.0.1", 1))
	second.Register(strings.ReplaceAll(webOne, "web", "far"))
	testenv.Eventually(t, "the datacenters know each other", func() error {
		conn, err := net.Dial("tcp", "127.71.1.6:8302")
		if err != nil {
			return err
		}
		return conn.Close()
	})
	s, _ := run(t, Config{Address: first.Address, Datacenters: []string{"dc1", "dc2"}}, true)
	want := map[string]string{"web.service.consul": "10.0.0.1 10.2.0.1", "far.service.consul": "10.0.0.1"}
	await(t, s, "the services of both datacenters are known", want)
	for i, e := range s.Get(config.Key{Kind: config.ServiceEntry, Namespace: "consul", Name: "web"}).Spec.(*networking.ServiceEntry).GetEndpoints() {
		dc := []string{"dc1", "dc2"}[i]
		if e.GetLocality() != dc || e.GetLabels()[clusterLabel] != dc {
			t.Errorf("endpoint %d is %v", i, e)
		}
	}
	second.Kill()
	awaitHealth(t, s, "datacenter dc2: ")
	await(t, s, "the services of the lost datacenter are still known", want)
	first.Register(strings.Replace(webOne, "10.0.0.1", "10.0.0.8", 1))
	want["web.service.consul"] = "10.0.0.8 10.2.0.1"
	await(t, s, "changes of the other datacenter arrive", want)
	second.Run()
	awaitHealth(t, s, "")
	second.Register(strings.Replace(webOne, "10.0.0.1", "10.2.0.2", 1))
	second.Put(passWebOne, "")
	second.Put("/v1/agent/check/pass/service:far-1", "")
	want["web.service.consul"] = "10.0.0.8 10.2.0.2"
	await(t, s, "changes arrive again", want)
}
