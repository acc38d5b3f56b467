package compare

import (
	"strings"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	wasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/wasm/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// TestRedactRemovesNestedKeys checks that Redact removes keys anywhere in a message, and no other values.
func TestRedactRemovesNestedKeys(t *testing.T) {
	inline := func(text string) *corev3.DataSource {
		return &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: text}}
	}
	packed, err := anypb.New(&tlsv3.UpstreamTlsContext{Sni: "shown.example", CommonTlsContext: &tlsv3.CommonTlsContext{
		TlsCertificates: []*tlsv3.TlsCertificate{{CertificateChain: inline("shown-chain"), PrivateKey: inline("the-key"), Password: inline("the-key")}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	cluster := &clusterv3.Cluster{Name: "c", TransportSocketMatches: []*clusterv3.Cluster_TransportSocketMatch{{
		Name: "m", TransportSocket: &corev3.TransportSocket{Name: "tls", ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: packed}},
	}}}
	secret := &tlsv3.Secret{Type: &tlsv3.Secret_GenericSecret{GenericSecret: &tlsv3.GenericSecret{Secret: inline("the-key")}}}
	environment := &wasmv3.EnvironmentVariables{KeyValues: map[string]string{"A": "shown-value", config.WasmPullSecret: "the-key"}}
	untyped, err := structpb.NewStruct(map[string]any{"a": map[string]any{"A": "shown-text", "B": redacted, config.WasmPullSecret: "the-key"}})
	if err != nil {
		t.Fatal(err)
	}
	for want, m := range map[string]proto.Message{"shown-chain": cluster, "": secret, "shown-value": environment, "shown-text": untyped} {
		Redact(m)
		text, err := protojson.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), "the-key") || !strings.Contains(string(text), redacted) || !strings.Contains(string(text), want) {
			t.Errorf("shown: %s", text)
		}
	}
}
