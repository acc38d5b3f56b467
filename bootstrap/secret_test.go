package bootstrap

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	secretv3 "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
	"github.com/pilotfish-mesh/pilotfish/internal/uds"
)

// theSecret is the agent's secret in these tests. No other text contains it.
const theSecret = "5e5ame-5e5ame"

func sidecarWithSecret() Config {
	c := sidecar()
	c.AgentSecret = theSecret
	return c
}

// listeningWithSDS is a listener with a config source for secrets, as control planes send it.
const listeningWithSDS = `{static_resources: {listeners: [{name: tls, address: {socket_address: {address: %s, port_value: 8443}}, filter_chains: [{
	filters: [{name: t, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy, stat_prefix: t, cluster: agent}}],
	transport_socket: {name: tls, typed_config: {"@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext, common_tls_context: {
		tls_certificate_sds_secret_configs: [{name: default, sds_config: {initial_fetch_timeout: 0s, resource_api_version: V3,
			api_config_source: {api_type: %s, transport_api_version: V3, grpc_services: [{envoy_grpc: {cluster_name: %s}}]}}}]}}}}]}]}}`

func TestEnvoySendsTheSecretToTheAgentAlone(t *testing.T) {
	for i, version := range testenv.EnvoyVersions() {
		for j, tc := range []struct {
			name, apiType, cluster string
			files                  bool
			want                   string
		}{
			{"SotW", "GRPC", sdsCluster, false, theSecret},
			{"delta", "DELTA_GRPC", sdsCluster, false, theSecret},
			{"files beside another program's SDS", "GRPC", filesCluster, true, theSecret},
			{"another program's SDS", "GRPC", sdsCluster, true, ""},
		} {
			t.Run(version+"/"+tc.name, func(t *testing.T) {
				t.Parallel()
				c := sidecarAt(t, fmt.Sprintf("127.101.2%d.%d", i, j+1))
				c.AgentSecret = theSecret
				c.Override = fmt.Appendf(nil, listeningWithSDS, c.Bind, tc.apiType, tc.cluster)
				dir := t.TempDir()
				socket := filepath.Join(dir, "agent")
				c.XDSSocket, c.SDSSocket = socket, socket
				if tc.files {
					c.FilesSocket = socket
				}
				seen := make(chan string, 100)
				serveRecorder(t, socket, seen)
				start(t, version, dir, encoded(t, c))
				want := map[string]bool{"xds " + theSecret: true, "sds " + tc.want: true}
				testenv.Eventually(t, "both services are called", func() error {
					select {
					case call := <-seen:
						if !want[call] && strings.HasPrefix(call, "xds") == strings.HasPrefix(call, "sds") {
							t.Errorf("Envoy sends the secret %q", call)
						}
						delete(want, call)
					default:
					}
					if len(want) > 0 {
						return fmt.Errorf("missing: %v", want)
					}
					return nil
				})
			})
		}
	}
}

// recorder records the service and the secret of each stream in its channel.
type recorder struct {
	discovery
	secretv3.UnimplementedSecretDiscoveryServiceServer
	seen chan<- string
}

func serveRecorder(t *testing.T, socket string, seen chan<- string) {
	t.Helper()
	r := &recorder{discovery: discovery{answers: true}, seen: seen}
	serve(t, socket, func(s *grpc.Server) {
		discoveryv3.RegisterAggregatedDiscoveryServiceServer(s, r)
		secretv3.RegisterSecretDiscoveryServiceServer(s, r)
	})
}

func (r *recorder) record(ctx context.Context, service string) {
	values := metadata.ValueFromIncomingContext(ctx, uds.SecretHeader)
	select {
	case r.seen <- service + " " + strings.Join(values, ","):
	default:
	}
}

func (r *recorder) DeltaAggregatedResources(s discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	r.record(s.Context(), "xds")
	return r.discovery.DeltaAggregatedResources(s)
}

func (r *recorder) StreamSecrets(s secretv3.SecretDiscoveryService_StreamSecretsServer) error {
	r.record(s.Context(), "sds")
	<-s.Context().Done()
	return s.Context().Err()
}

func (r *recorder) DeltaSecrets(s secretv3.SecretDiscoveryService_DeltaSecretsServer) error {
	r.record(s.Context(), "sds")
	<-s.Context().Done()
	return s.Context().Err()
}

func TestSecretOfTheAgentIsNotShown(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"plain":      func(*Config) {},
		"overridden": func(c *Config) { c.Override = []byte(`{stats_flush_interval: 7s}`) },
		"custom":     func(c *Config) { c.Custom = []byte(`{"static_resources": {}}`) },
	} {
		t.Run(name, func(t *testing.T) {
			c := sidecarWithSecret()
			change(&c)
			shown, err := Render(c)
			if err != nil || strings.Contains(string(shown), theSecret) || !strings.Contains(string(shown), redactedValue) {
				t.Errorf("%v:\n%s", err, shown)
			}
			written, err := Encode(c)
			if err != nil || strings.Count(string(written), theSecret) != 1 {
				t.Errorf("Envoy's file does not have the secret once, %v:\n%s", err, written)
			}
		})
	}
}

func TestSecretOfTheAgentIsProtected(t *testing.T) {
	for name, override := range map[string]string{
		"changed":  `{static_resources: {secrets: [{name: pilotfish-agent, generic_secret: {secret: {inline_string: x}}}]}}`,
		"removed":  `[{"op": "remove", "path": "/static_resources/secrets"}]`,
		"replaced": `[{"op": "add", "path": "/static_resources/secrets", "value": [{"name": "mine"}]}]`,
		"twice":    `[{"op": "copy", "from": "/static_resources/secrets/0", "path": "/static_resources/secrets/-"}]`,
	} {
		t.Run(name, func(t *testing.T) {
			c := sidecarWithSecret()
			c.Override, c.OverrideFile = []byte(override), "o.yaml"
			expectRefused(t, c, []string{"o.yaml", "static secret pilotfish-agent", "do not change it"})
		})
	}
	c := sidecarWithSecret()
	c.Custom, c.CustomFile = []byte(`{"static_resources": {"secrets": [{"name": "pilotfish-agent"}]}}`), "c.json"
	expectRefused(t, c, []string{"c.json", "static secret pilotfish-agent"})
}

func TestCustomBootstrapGetsTheSecretOfTheAgent(t *testing.T) {
	c := sidecarWithSecret()
	c.Custom = []byte(`{"static_resources": {"secrets": [{"name": "mine"}]}}`)
	c.Override = []byte(`{static_resources: {secrets: [{name: yours}]}}`)
	text, err := Encode(c)
	if err != nil {
		t.Fatal(err)
	}
	b := &bootstrapv3.Bootstrap{}
	if err := protojson.Unmarshal(text, b); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, s := range b.GetStaticResources().GetSecrets() {
		names = append(names, s.GetName())
	}
	if got := strings.Join(names, " "); got != "mine pilotfish-agent yours" {
		t.Errorf("secrets: %s", got)
	}
	if strings.Count(string(text), uds.SecretHeader) != len(protectedClusters) {
		t.Errorf("not every protected cluster sends the secret:\n%s", text)
	}
}
