//go:build linux

package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	secretv3 "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/pilotfish-mesh/pilotfish/sds"
)

const (
	secretPushes  = 500 // number of changes of one secret, for one stream
	secretStreams = 1000
	fileSwaps     = 100 // number of changes of the certificate files that an Envoy uses
	secretPort    = 18443
	// secretTimeout limits operations that could otherwise hang.
	secretTimeout = 20 * time.Second
)

// certificate measures the SDS server: the time from its start until a client has a certificate, the pushes per second, and
// the time from a change of certificate files until a client and Envoy use the new certificate.
func (b *bench) certificate(ctx context.Context) error {
	stop, err := b.startPlane(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = stop() }()
	if err := b.firstCertificates(ctx); err != nil {
		return err
	}
	if err := b.secretPushes(ctx); err != nil {
		return err
	}
	return b.fileChanges(ctx)
}

// secretServer starts an SDS server, and connects to it.
func secretServer(ctx context.Context, config sds.Config) (client secretv3.SecretDiscoveryServiceClient, stop func(), err error) {
	server, err := sds.New(config)
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- server.Run(ctx) }()
	// The server may not listen yet. By default, gRPC retries after one second, which would distort the measurement.
	soon := grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: time.Millisecond, Multiplier: 1, MaxDelay: time.Millisecond}}
	conn, err := grpc.NewClient("unix:"+config.Socket, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithConnectParams(soon))
	if err != nil {
		cancel()
		return nil, nil, err
	}
	return secretv3.NewSecretDiscoveryServiceClient(conn), func() { _ = conn.Close(); cancel(); <-ended }, nil
}

// subscribe opens a stream for the secret called name, and reads the first response.
func subscribe(ctx context.Context, client secretv3.SecretDiscoveryServiceClient, name string) (secretv3.SecretDiscoveryService_DeltaSecretsClient, error) {
	stream, err := client.DeltaSecrets(ctx, grpc.WaitForReady(true))
	if err != nil {
		return nil, err
	}
	if err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{ResourceNamesSubscribe: []string{name}}); err != nil {
		return nil, err
	}
	_, err = stream.Recv()
	return stream, err
}

func (b *bench) firstCertificates(ctx context.Context) error {
	dir, err := b.workDir("certificate")
	if err != nil {
		return err
	}
	fmt.Printf("from start to a certificate at a client, medians of %d\n", b.rounds)
	for _, key := range []sds.KeyType{sds.ECDSAP256, sds.RSA2048} {
		var took []time.Duration
		for range b.rounds {
			d, err := firstCertificate(ctx, dir, key)
			if err != nil {
				return err
			}
			took = append(took, d)
		}
		fmt.Printf("  %-12s                                    %6.1f ms\n", key, float64(median(took).Microseconds())/1000)
	}
	return nil
}

func firstCertificate(ctx context.Context, dir string, key sds.KeyType) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, secretTimeout)
	defer cancel()
	began := time.Now()
	source, err := sds.NewCASource(sds.CAConfig{
		Address: planeAddress + ":15012", Key: key,
		CAServer: sds.CAServer{TLS: sds.TLS{RootFile: filepath.Join(dir, rootFile), ServerName: "istiod.istio-system.svc"},
			TokenFile: filepath.Join(dir, tokenFile)},
		TrustDomain: "cluster.local", Namespace: "default", ServiceAccount: "default",
	})
	if err != nil {
		return 0, err
	}
	client, stop, err := secretServer(ctx, sds.Config{Socket: filepath.Join(dir, "sds"), Source: source})
	if err != nil {
		return 0, err
	}
	defer stop()
	if _, err = subscribe(ctx, client, sds.DefaultName); err != nil {
		_, reason := source.Health()
		return 0, fmt.Errorf("%w (%s)", err, reason)
	}
	return time.Since(began), nil
}

// certificateFiles are the files of a certificate, and two versions of their contents.
type certificateFiles struct {
	dir, cert, key string
	versions       [2][2][]byte
	next           int
}

func newCertificateFiles(dir string) (*certificateFiles, error) {
	p := &certificateFiles{dir: dir, cert: filepath.Join(dir, "tls.crt"), key: filepath.Join(dir, "tls.key")}
	for i := range p.versions {
		if err := writeCertificates(dir, "server"); err != nil {
			return nil, err
		}
		for j, name := range []string{"server.pem", "server.key"} {
			text, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil {
				return nil, err
			}
			p.versions[i][j] = text
		}
	}
	return p, p.swap()
}

func (p *certificateFiles) name() string { return "file-cert:" + p.cert + "~" + p.key }

// swap replaces the files by the other version, in the same way as programs that renew certificates.
func (p *certificateFiles) swap() error {
	version := p.versions[p.next%2]
	p.next++
	for i, file := range []string{p.key, p.cert} {
		if err := os.WriteFile(file+".tmp", version[1-i], 0o600); err != nil {
			return err
		}
		if err := os.Rename(file+".tmp", file); err != nil {
			return err
		}
	}
	return nil
}

// secretPushes measures how fast a changed secret is pushed: first repeatedly to one client, each time after its ACK, and
// then once to many clients.
func (b *bench) secretPushes(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*secretTimeout)
	defer cancel()
	dir, err := os.MkdirTemp(b.dir, "push")
	if err != nil {
		return err
	}
	client, stop, server, err := trustServer(ctx, dir)
	if err != nil {
		return err
	}
	defer stop()
	roots, err := rootVersions(dir)
	if err != nil {
		return err
	}
	stream, err := subscribe(ctx, client, sds.RootName)
	if err != nil {
		return err
	}
	began := time.Now()
	for i := range secretPushes {
		if err := server.SetExtraRoots("bench", roots[i%2]); err != nil {
			return err
		}
		if _, err := stream.Recv(); err != nil {
			return err
		}
	}
	one := time.Since(began)
	streams := make([]secretv3.SecretDiscoveryService_DeltaSecretsClient, secretStreams)
	for i := range streams {
		if streams[i], err = subscribe(ctx, client, sds.RootName); err != nil {
			return err
		}
	}
	began = time.Now()
	if err := server.SetExtraRoots("bench", roots[secretPushes%2]); err != nil {
		return err
	}
	var all sync.WaitGroup
	for _, s := range streams {
		all.Go(func() { _, _ = s.Recv() })
	}
	all.Wait()
	many := time.Since(began)
	fmt.Printf("secrets pushed\n")
	fmt.Printf("  one after the other to one stream               %6.0f a second\n", secretPushes/one.Seconds())
	fmt.Printf("  one to %d streams                             %6.0f a second   all in %.1f ms\n", secretStreams,
		secretStreams/many.Seconds(), float64(many.Microseconds())/1000)
	return nil
}

// trustServer starts an SDS server that serves a certificate from files, and connects to it.
func trustServer(ctx context.Context, dir string) (secretv3.SecretDiscoveryServiceClient, func(), *sds.Server, error) {
	if err := writeCertificates(dir, "server"); err != nil {
		return nil, nil, nil, err
	}
	source, err := sds.NewFileSource(sds.FileConfig{CertFile: filepath.Join(dir, "server.pem"),
		KeyFile: filepath.Join(dir, "server.key"), RootFile: filepath.Join(dir, "root.pem")})
	if err != nil {
		return nil, nil, nil, err
	}
	server, err := sds.New(sds.Config{Socket: filepath.Join(dir, "s"), Source: source})
	if err != nil {
		return nil, nil, nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- server.Run(ctx) }()
	conn, err := grpc.NewClient("unix:"+filepath.Join(dir, "s"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		cancel()
		return nil, nil, nil, err
	}
	return secretv3.NewSecretDiscoveryServiceClient(conn), func() { _ = conn.Close(); cancel(); <-ended }, server, nil
}

// rootVersions returns two different sets of root certificates.
func rootVersions(dir string) (versions [2][]string, err error) {
	for i := range versions {
		more := filepath.Join(dir, fmt.Sprint(i))
		if err := os.MkdirAll(more, 0o700); err != nil {
			return versions, err
		}
		if err := writeCertificates(more); err != nil {
			return versions, err
		}
		text, err := os.ReadFile(filepath.Join(more, "root.pem"))
		if err != nil {
			return versions, err
		}
		versions[i] = []string{string(text)}
	}
	return versions, nil
}

const secretEnvoy = `
admin: {address: {socket_address: {address: %[1]s, port_value: 15000}}}
node: {id: bench, cluster: bench}
static_resources:
  listeners:
  - address: {socket_address: {address: %[1]s, port_value: %[2]d}}
    filter_chains:
    - filters:
      - name: tcp
        typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy, stat_prefix: t, cluster: sds-grpc}
      transport_socket:
        name: tls
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext
          common_tls_context:
            tls_certificate_sds_secret_configs: [{name: %[3]q, sds_config: {resource_api_version: V3, api_config_source: {api_type: GRPC, transport_api_version: V3, grpc_services: [{envoy_grpc: {cluster_name: sds-grpc}}]}}}]
  clusters:
  - name: sds-grpc
    type: STATIC
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {http2_protocol_options: {}}
    load_assignment: {cluster_name: sds-grpc, endpoints: [{lb_endpoints: [{endpoint: {address: {pipe: {path: ./s}}}}]}]}
`

// fileChanges measures the time from a change of certificate files until an SDS client receives the new certificate, and
// until Envoy uses it in a TLS handshake.
func (b *bench) fileChanges(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 3*secretTimeout)
	defer cancel()
	dir, err := os.MkdirTemp(b.dir, "file")
	if err != nil {
		return err
	}
	pair, err := newCertificateFiles(dir)
	if err != nil {
		return err
	}
	client, stop, err := secretServer(ctx, sds.Config{Socket: filepath.Join(dir, "s")})
	if err != nil {
		return err
	}
	defer stop()
	stream, err := subscribe(ctx, client, pair.name())
	if err != nil {
		return err
	}
	file := filepath.Join(dir, "envoy.yaml")
	if err := os.WriteFile(file, fmt.Appendf(nil, secretEnvoy, proxyAddress, secretPort, pair.name()), 0o600); err != nil {
		return err
	}
	stopEnvoy, err := start(dir, os.Environ(), b.envoy, "-c", file, "--disable-hot-restart", "-l", "warning")
	if err != nil {
		return err
	}
	defer func() { _ = stopEnvoy() }()
	if _, err := awaitOK(ctx, "http://"+proxyAddress+":15000/ready"); err != nil {
		return err
	}
	var pushed, served []time.Duration
	for range fileSwaps {
		before, err := servedSerial()
		if err != nil {
			return err
		}
		began := time.Now()
		if err := pair.swap(); err != nil {
			return err
		}
		if _, err := stream.Recv(); err != nil {
			return err
		}
		pushed = append(pushed, time.Since(began))
		for now := before; now == before; {
			if now, err = servedSerial(); err != nil {
				return err
			}
			if time.Since(began) > 10*time.Second {
				return fmt.Errorf("Envoy still uses the old certificate after 10 s")
			}
		}
		served = append(served, time.Since(began))
	}
	fmt.Printf("from the change of a certificate's files, %d times (median, 99th percentile)\n", fileSwaps)
	for _, m := range []struct {
		name string
		took []time.Duration
	}{{"at a client of SDS", pushed}, {"in Envoy's handshakes", served}} {
		slices.Sort(m.took)
		fmt.Printf("  %-22s                          %6.1f ms  %6.1f ms\n", m.name, float64(m.took[len(m.took)/2].Microseconds())/1000,
			float64(m.took[len(m.took)*99/100].Microseconds())/1000)
	}
	return nil
}

// servedSerial returns the serial number of the certificate that Envoy sends in a TLS handshake.
func servedSerial() (string, error) {
	conn, err := tls.DialWithDialer(&net.Dialer{Timeout: 5 * time.Second}, "tcp", fmt.Sprintf("%s:%d", proxyAddress, secretPort),
		&tls.Config{InsecureSkipVerify: true})
	if err != nil {
		return "", err
	}
	defer conn.Close()
	return string(conn.ConnectionState().PeerCertificates[0].Raw), nil
}
