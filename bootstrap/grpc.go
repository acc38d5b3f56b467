package bootstrap

import (
	"bytes"
	"encoding/json"
	"fmt"
	"path/filepath"
)

// serverListener is the name by which Istio's control plane knows the listener of a gRPC server; %s is the address that
// the server listens at.
const serverListener = "xds.istio.io/grpc/lds/inbound/%s"

// grpcProvider is the name of the certificates, as control planes refer to them.
const grpcProvider = "default"

// The bootstrap of gRPC's own xDS clients, as gRFC A27 and A29 have it.
type grpcBootstrap struct {
	Servers        []grpcServer                `json:"xds_servers"`
	Node           grpcNode                    `json:"node"`
	Certificates   map[string]grpcCertificates `json:"certificate_providers,omitempty"`
	ServerListener string                      `json:"server_listener_resource_name_template"`
}

type grpcServer struct {
	URI         string            `json:"server_uri"`
	Credentials []grpcCredentials `json:"channel_creds"`
	Features    []string          `json:"server_features"`
}

type grpcCredentials struct {
	Type string `json:"type"`
}

type grpcNode struct {
	ID       string         `json:"id"`
	Cluster  string         `json:"cluster"`
	Locality *grpcLocality  `json:"locality,omitempty"`
	Metadata map[string]any `json:"metadata"`
}

type grpcLocality struct {
	Region  string `json:"region,omitempty"`
	Zone    string `json:"zone,omitempty"`
	SubZone string `json:"sub_zone,omitempty"`
}

type grpcCertificates struct {
	Plugin string          `json:"plugin_name"`
	Config grpcFileWatcher `json:"config"`
}

type grpcFileWatcher struct {
	Certificate string `json:"certificate_file"`
	Key         string `json:"private_key_file"`
	Roots       string `json:"ca_certificate_file"`
	Refresh     string `json:"refresh_interval"`
}

// GRPC makes the bootstrap of a proxyless gRPC application, which finds the control plane through the agent as Envoy
// does. It has certificates only where they are written as files.
func GRPC(c Config) ([]byte, error) {
	c, err := c.withDefaults()
	if err != nil {
		return nil, err
	}
	node, err := Node(c)
	if err != nil {
		return nil, err
	}
	metadata := node.GetMetadata().AsMap()
	// By this a control plane knows that it has no Envoy before it, and by the other that mutual TLS can be had.
	metadata["GENERATOR"] = "grpc"
	if c.CertDir != "" {
		metadata["CERTIFICATE_PROVIDER"] = grpcProvider
	}
	b := grpcBootstrap{
		Servers: []grpcServer{{
			URI: "unix://" + c.absolute(c.XDSSocket),
			// The socket's file mode says who may connect; there is nothing between here and the agent to encrypt against.
			Credentials: []grpcCredentials{{Type: "insecure"}},
			Features:    []string{"xds_v3"},
		}},
		Node:           grpcNode{ID: node.GetId(), Cluster: node.GetCluster(), Metadata: metadata},
		Certificates:   c.grpcCertificates(),
		ServerListener: serverListener,
	}
	if l := node.GetLocality(); l != nil {
		b.Node.Locality = &grpcLocality{Region: l.GetRegion(), Zone: l.GetZone(), SubZone: l.GetSubZone()}
	}
	return indented(b)
}

func (c Config) grpcCertificates() map[string]grpcCertificates {
	if c.CertDir == "" {
		return nil
	}
	file := func(name string) string { return c.absolute(filepath.Join(c.CertDir, name)) }
	return map[string]grpcCertificates{grpcProvider: {
		Plugin: "file_watcher",
		Config: grpcFileWatcher{
			Certificate: file("cert-chain.pem"),
			Key:         file("key.pem"),
			Roots:       file("root-cert.pem"),
			Refresh:     "900s",
		},
	}}
}

// absolute is a path that means the same to a process with another working directory.
func (c Config) absolute(path string) string {
	if filepath.IsAbs(path) {
		return filepath.Clean(path)
	}
	dir := c.WorkingDir
	if dir == "" {
		dir = "/"
	}
	return filepath.Join(dir, path)
}

func indented(v any) ([]byte, error) {
	var out bytes.Buffer
	j := json.NewEncoder(&out)
	j.SetEscapeHTML(false)
	j.SetIndent("", "  ")
	if err := j.Encode(v); err != nil {
		return nil, fmt.Errorf("bootstrap: encoding it as JSON: %w", err)
	}
	return out.Bytes(), nil
}
