package agent

import (
	"context"
	"fmt"
	"log/slog"

	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/proto"
	meshv1 "istio.io/api/mesh/v1alpha1"

	"github.com/pilotfish-mesh/pilotfish/sds"
)

// Names of the sources of additional trust bundles.
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
		Signer:            c.Signer,
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

// applyProxyConfig applies the mesh's trust bundles from the ProxyConfig resource of the control plane. If a bundle is
// invalid, it returns an error, and the previous bundles remain in effect.
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

// applyDenyList applies the revocation lists of the control plane. If a list is malformed, it returns an error, and the
// previous lists remain in effect.
func applyDenyList(certificates *sds.Server, resources [][]byte) error {
	for _, resource := range resources { // the control plane sends exactly one resource
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

// CertificateReport lists the served certificates and their condition.
type CertificateReport struct {
	OK bool `json:"ok"`
	// Reason describes a problem or another notable condition of the certificates. It is empty if there is none.
	Reason string `json:"reason,omitempty"`
	Remedy string `json:"remedy,omitempty"`
	// ExternalSocket is the socket of the external server from which Envoy gets its identity.
	ExternalSocket string                `json:"outside,omitempty"`
	Certificates   []sds.CertificateInfo `json:"certificates"`
}

// handleCertificates registers the handler of the cert command.
func (a *Agent) handleCertificates(server *sds.Server) {
	a.control.Handle("GET /certificates", jsonHandler(func(context.Context, struct{}) (CertificateReport, error) {
		condition := server.Condition()
		r := CertificateReport{OK: condition.OK, Reason: condition.Reason, Remedy: condition.Remedy, Certificates: server.Certificates()}
		if c := a.Config.Certificates; c.ExternalServer == sds.ExternalSDS {
			r.ExternalSocket = c.Socket
		}
		return r, nil
	}))
}
