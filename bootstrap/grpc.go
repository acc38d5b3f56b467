package bootstrap

import (
	"bytes"
	"encoding/json"
	"fmt"
	"path/filepath"
)

// serverListener is Istio's format for the name of a gRPC server's listener. %s is the address on which the server
// listens.
const serverListener = "xds.istio.io/grpc/lds/inbound/%s"

// grpcProvider is the name of the certificate provider. The resources of control planes refer to it.
const grpcProvider = "default"

// grpcBootstrap is the bootstrap of gRPC's own xDS clients, specified by gRFC A27 and A29.
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

// GRPC returns the bootstrap of a proxyless gRPC application, which connects to the control plane through the agent. It
// refers to certificates only if the agent writes them to files.
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
	// GENERATOR notifies the control plane that the application has no Envoy. CERTIFICATE_PROVIDER enables mutual TLS.
	metadata["GENERATOR"] = "grpc"
	if c.CertDir != "" {
		metadata["CERTIFICATE_PROVIDER"] = grpcProvider
	}
	b := grpcBootstrap{
		Servers: []grpcServer{{
			URI: "unix://" + c.absolutePath(c.XDSSocket),
			// The socket's file mode restricts which clients can connect. Encryption is unnecessary, because the server
			// on a unix socket is always the local agent.
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
	return marshalIndented(b)
}

func (c Config) grpcCertificates() map[string]grpcCertificates {
	if c.CertDir == "" {
		return nil
	}
	file := func(name string) string { return c.absolutePath(filepath.Join(c.CertDir, name)) }
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

// absolutePath returns a path that is also valid for a process with another working directory.
func (c Config) absolutePath(path string) string {
	if filepath.IsAbs(path) {
		return filepath.Clean(path)
	}
	dir := c.WorkingDir
	if dir == "" {
		dir = "/"
	}
	return filepath.Join(dir, path)
}

func marshalIndented(v any) ([]byte, error) {
	var out bytes.Buffer
	j := json.NewEncoder(&out)
	j.SetEscapeHTML(false)
	j.SetIndent("", "  ")
	if err := j.Encode(v); err != nil {
		return nil, fmt.Errorf("bootstrap: encoding the bootstrap as JSON: %w", err)
	}
	return out.Bytes(), nil
}
