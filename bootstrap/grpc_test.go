package bootstrap

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/structpb"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
)

// The fields are those that gRPC's xDS clients read (gRFC A27, A29, A36).
type readByGRPC struct {
	Servers []struct {
		URI      string              `json:"server_uri"`
		Channel  []map[string]string `json:"channel_creds"`
		Features []string            `json:"server_features"`
	} `json:"xds_servers"`
	Node      json.RawMessage
	Providers map[string]struct {
		Plugin string            `json:"plugin_name"`
		Config map[string]string `json:"config"`
	} `json:"certificate_providers"`
	Listener string `json:"server_listener_resource_name_template"`
}

func grpcOf(t *testing.T, c Config) readByGRPC {
	t.Helper()
	text, err := GRPC(c)
	if err != nil {
		t.Fatal(err)
	}
	var got readByGRPC
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&got); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return got
}

func TestProxylessClientsFindTheAgentFromAnyDirectory(t *testing.T) {
	c := sidecar()
	for dir, want := range map[string]string{"": "unix:///etc/istio/proxy/XDS", "/srv/app": "unix:///srv/app/etc/istio/proxy/XDS"} {
		c.WorkingDir = dir
		server := grpcOf(t, c).Servers[0]
		if server.URI != want || server.Channel[0]["type"] != "insecure" || server.Features[0] != "xds_v3" {
			t.Errorf("with the working directory %q: %+v, want %s", dir, server, want)
		}
	}
	c.XDSSocket = "/run/../run/xds"
	if got := grpcOf(t, c).Servers[0].URI; got != "unix:///run/xds" {
		t.Errorf("an absolute socket path is changed to %s", got)
	}
}

func TestProxylessClientsAreTheSameNodeAsEnvoy(t *testing.T) {
	c := golden["hostile-names"]()
	got := &corev3.Node{}
	if err := protojson.Unmarshal(grpcOf(t, c).Node, got); err != nil {
		t.Fatal(err)
	}
	want, err := Node(c)
	if err != nil {
		t.Fatal(err)
	}
	want.Metadata.Fields["GENERATOR"] = structpb.NewStringValue("grpc") // the only difference between the two nodes
	if diff := cmp.Diff(protojson.Format(want), protojson.Format(got)); diff != "" {
		t.Error(diff)
	}
}

func TestProxylessClientsHaveCertificatesOnlyWhereTheyAreWritten(t *testing.T) {
	c := sidecar()
	if got := grpcOf(t, c).Providers; got != nil {
		t.Errorf("without a certificate directory, the bootstrap contains %v", got)
	}
	c.CertDir, c.WorkingDir = "./certs", "/srv"
	want := map[string]string{
		"certificate_file": "/srv/certs/cert-chain.pem", "private_key_file": "/srv/certs/key.pem",
		"ca_certificate_file": "/srv/certs/root-cert.pem", "refresh_interval": "900s",
	}
	if node := string(grpcOf(t, c).Node); !strings.Contains(node, `"CERTIFICATE_PROVIDER": "default"`) {
		t.Errorf("the node metadata lacks the certificate provider: %s", node)
	}
	got := grpcOf(t, c).Providers["default"]
	if diff := cmp.Diff(want, got.Config); diff != "" || got.Plugin != "file_watcher" {
		t.Errorf("plug-in %q: %s", got.Plugin, diff)
	}
}
