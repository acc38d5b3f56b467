package agent

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"time"

	"google.golang.org/protobuf/proto"
	meshv1 "istio.io/api/mesh/v1alpha1"

	"github.com/pilotfish-mesh/pilotfish/internal/uds"
	"github.com/pilotfish-mesh/pilotfish/sds"
)

// The givers of roots of other domains.
const (
	trustOfMesh         = "ProxyConfig"
	trustOfControlPlane = "control plane"
)

// newCertificates takes certificates from where the contract says, in its order: what somebody else serves, a SPIFFE
// Workload API, files, the certificate authority.
func (a *Agent) newCertificates() (*sds.Server, error) {
	c := a.Config.Certificates
	logger := a.Logger.With("part", "certificates")
	source, err := a.certificateSource(logger)
	if err != nil {
		return nil, err
	}
	server, err := sds.New(sds.Config{
		Socket:      c.ownSocket(),
		SocketOwner: a.Config.Envoy.User,
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
	a.offerCertificates(server)
	return server, server.Trust(trustOfMesh, c.Anchors)
}

func (a *Agent) certificateSource(logger *slog.Logger) (sds.Source, error) {
	c, id := a.Config.Certificates, a.Config.Identity
	switch {
	case c.Outside == sds.OutsideSDS:
		return nil, nil
	case c.WorkloadAPI != "":
		return sds.NewWorkloadSource(sds.WorkloadConfig{Target: c.WorkloadAPI, SPIFFEID: id.SPIFFEID(), Logger: logger})
	case c.Files != "":
		files := sds.Files(c.Files)
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

// trustConfigured takes the trust bundles of the mesh from the configuration that the control plane has for its proxies.
// Bundles that are not good change nothing, and the error says why.
func trustConfigured(certificates *sds.Server, resources [][]byte) error {
	var roots []string
	for _, resource := range resources {
		config := &meshv1.ProxyConfig{}
		if err := proto.Unmarshal(resource, config); err != nil {
			return fmt.Errorf("reading ProxyConfig: %w", err)
		}
		roots = append(roots, config.CaCertificatesPem...)
	}
	return certificates.Trust(trustOfControlPlane, roots)
}

// outsidePatience is how long somebody else's socket is waited for, and outsidePoll how often it is looked at.
const (
	outsidePatience = 10 * time.Second
	outsidePoll     = 100 * time.Millisecond
)

// lookOutside says what somebody else serves on the socket of certificates. The agent whose control socket is given is not
// somebody else. With patience, what is not there yet is waited for.
func lookOutside(patient bool) func(socket, control string, wait bool) sds.Outside {
	return func(socket, control string, wait bool) sds.Outside {
		for end := time.Now().Add(outsidePatience); ; time.Sleep(outsidePoll) {
			switch found := sds.LookOutside(context.Background(), socket); {
			case found != sds.OutsideNothing && sameServer(socket, control):
				return sds.OutsideNothing
			case found != sds.OutsideNothing, !wait, !patient, time.Now().After(end):
				return found
			}
		}
	}
}

// sameServer says whether one process listens on both sockets.
func sameServer(a, b string) bool {
	first, second := listenerOf(a), listenerOf(b)
	return first != 0 && first == second
}

// listenerOf is the process that listens on a socket; 0 when that is not known.
func listenerOf(socket string) int32 {
	conn, err := net.DialTimeout("unix", socket, occupyAsk)
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
