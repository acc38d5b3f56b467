package agent

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"time"

	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/proto"
	meshv1 "istio.io/api/mesh/v1alpha1"

	"github.com/pilotfish-mesh/pilotfish/agent/config"
	"github.com/pilotfish-mesh/pilotfish/internal/uds"
	"github.com/pilotfish-mesh/pilotfish/sds"
)

// Sources of additional trust bundles.
const (
	trustSourceProxyConfig  = "ProxyConfig"
	trustSourceControlPlane = "control plane"
)

// newCertificates creates the SDS server. The certificate source is the first that is configured, in Istio's order: an
// external SDS server, a SPIFFE Workload API, files, the certificate authority.
func (a *Agent) newCertificates() (*sds.Server, error) {
	c := a.Config.Certificates
	logger := a.Logger.With("part", "certificates")
	source, err := a.certificateSource(logger)
	if err != nil {
		return nil, err
	}
	server, err := sds.New(sds.Config{
		Socket:      c.OwnSocket(),
		SocketOwner: a.Config.Envoy.User,
		Guard:       a.newGuard("certificates", nil),
		Source:      source,
		Output:      c.Output,
		CRLFile:     c.CRLFile,
		KeyProvider: c.KeyProvider,
		Debounce:    c.Debounce,
		Logger:      logger,
		Metrics:     a.metrics,
	})
	if err != nil {
		return nil, err
	}
	a.handleCertificates(server)
	return server, server.SetExtraRoots(trustSourceProxyConfig, c.Anchors)
}

func (a *Agent) certificateSource(logger *slog.Logger) (sds.Source, error) {
	c, id := a.Config.Certificates, a.Config.Identity
	switch {
	case c.ExternalServer == sds.ExternalSDS:
		return nil, nil
	case c.WorkloadAPI != "":
		return sds.NewSPIFFESource(sds.SPIFFEConfig{Target: c.WorkloadAPI, SPIFFEID: id.SPIFFEID(), Logger: logger})
	case c.Files != "":
		files := sds.IdentityFiles(c.Files)
		files.Debounce, files.Logger = c.Debounce, logger
		return sds.NewFileSource(files)
	}
	return sds.NewCASource(sds.CAConfig{
		Address: c.Address,
		CAServer: sds.CAServer{
			Plaintext: c.Plaintext,
			TLS:       sds.TLS{RootFile: c.RootFile, ServerName: c.ServerName, CertFile: c.CertFile, KeyFile: c.KeyFile, Policy: a.Config.TLSPolicy},
			TokenFile: c.TokenFile,
			Token:     a.token(),
			ClusterID: id.ClusterID,
			Headers:   c.Headers,
		},
		TrustDomain:       id.TrustDomain,
		Namespace:         id.Namespace,
		ServiceAccount:    id.ServiceAccount,
		Key:               c.Key,
		PKCS8:             c.PKCS8,
		Saved:             c.Output.Dir,
		TTL:               c.TTL,
		GraceRatio:        c.GraceRatio,
		GraceJitter:       c.GraceJitter,
		DropReplacedRoots: c.DropReplacedRoots,
		Logger:            logger,
		Metrics:           a.metrics,
	})
}

// applyProxyConfig applies the mesh's trust bundles from the ProxyConfig resource of the control plane. Invalid bundles
// are rejected as a whole with an error.
func applyProxyConfig(certificates *sds.Server, resources [][]byte) error {
	var roots []string
	for _, resource := range resources {
		config := &meshv1.ProxyConfig{}
		if err := proto.Unmarshal(resource, config); err != nil {
			return fmt.Errorf("reading ProxyConfig: %w", err)
		}
		roots = append(roots, config.CaCertificatesPem...)
	}
	return certificates.SetExtraRoots(trustSourceControlPlane, roots)
}

// applyDenyList applies the revocation lists of the control plane. Malformed lists are rejected as a whole.
func applyDenyList(certificates *sds.Server, resources [][]byte) error {
	for _, resource := range resources { // the control plane sends one
		context := &tlsv3.CertificateValidationContext{}
		if err := proto.Unmarshal(resource, context); err != nil {
			return fmt.Errorf("reading the deny list: %w", err)
		}
		if err := certificates.SetRevocationLists(context.GetCrl().GetInlineBytes(), context.GetTrustedCa().GetInlineBytes()); err != nil {
			return err
		}
	}
	return nil
}

// externalServerTimeout is the maximum wait for an external server on the certificate socket, and
// externalServerPollInterval the interval between checks.
const (
	externalServerTimeout      = 10 * time.Second
	externalServerPollInterval = 100 * time.Millisecond
)

// detectExternalServer returns a function that reports which service another process offers on the certificate socket.
// A server of the agent that listens on the control socket does not count. If both mayWait and wait are set, the
// function waits for a server.
func detectExternalServer(mayWait bool) func(socket, control string, wait bool) sds.ExternalServer {
	return func(socket, control string, wait bool) sds.ExternalServer {
		for end := time.Now().Add(externalServerTimeout); ; time.Sleep(externalServerPollInterval) {
			switch found := sds.ProbeSocket(context.Background(), socket); {
			case found != sds.ExternalNone && isSameServer(socket, control):
				return sds.ExternalNone
			case found != sds.ExternalNone, !wait, !mayWait, time.Now().After(end):
				return found
			}
		}
	}
}

// isSameServer reports whether one process listens on both sockets.
func isSameServer(a, b string) bool {
	first, second := listenerPID(a), listenerPID(b)
	return first != 0 && first == second
}

// listenerPID returns the PID of the process that listens on a socket; 0 if unknown.
func listenerPID(socket string) int32 {
	conn, err := net.DialTimeout("unix", socket, config.PeerDialTimeout)
	if err != nil {
		return 0
	}
	defer conn.Close()
	peer, err := uds.PeerOf(conn)
	if err != nil {
		return 0
	}
	return peer.PID
}
