// Package sds provides Envoy's certificates. It serves Envoy's secret discovery service (SDS) on a unix socket. Sources
// obtain the workload's certificate from a certificate authority by CSR, from the SPIFFE Workload API, or from files.
// The server sends the last valid secret until a new one is verified. So an unreachable, slow or faulty certificate
// authority does not affect the served secrets.
package sds

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"sync"
	"time"

	secretv3 "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/tap"

	"github.com/pilotfish-mesh/pilotfish/internal/owner"
	"github.com/pilotfish-mesh/pilotfish/internal/uds"
)

// Names of the SDS resources that every proxy requests: its certificate, and the roots for verifying peers.
const (
	DefaultName = "default"
	RootName    = "ROOTCA"
)

// Config configures a Server.
type Config struct {
	// Socket is the path of the unix socket that Envoy connects to, relative to the working directory or absolute.
	Socket string
	// SocketMode is the mode of the socket; zero is 0600.
	SocketMode fs.FileMode
	// SocketOwner is the owner of the socket; nil: this process's user.
	SocketOwner *owner.Owner
	// AllowedUIDs are the users that may connect; nil: this process's user, root, and 1337.
	AllowedUIDs []uint32
	// Guard checks the secret in the header of each request; nil: no check.
	Guard *uds.Guard
	// Source provides "default" and "ROOTCA"; nil: only files are served.
	Source Source
	// Output writes the identity to a directory, for programs without SDS support.
	Output Output
	// KeyProvider makes Envoy use keys through an accelerator; nil: none.
	KeyProvider *KeyProvider
	// CRLFile contains revocation lists that are served with the roots. It may be missing; the server watches it.
	// Empty: none.
	CRLFile string
	// Debounce is how long files must be unchanged before they are read; default 100 ms.
	Debounce time.Duration

	Logger *slog.Logger
	// Metrics registers the server's metrics; nil: not registered.
	Metrics prometheus.Registerer
	// Clock defaults to the system clock.
	Clock Clock
}

func (c *Config) setDefaults() error {
	if c.Socket == "" {
		return errors.New("sds: no socket path is set")
	}
	if c.AllowedUIDs == nil {
		c.AllowedUIDs = uds.DefaultUsers()
	}
	if err := c.KeyProvider.check(); err != nil {
		return err
	}
	if c.SocketMode == 0 {
		c.SocketMode = 0o600
	}
	if c.Debounce <= 0 {
		c.Debounce = defaultDebounce
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Clock == nil {
		c.Clock = systemClock{}
	}
	return nil
}

// Server serves secrets to Envoy. Its methods are safe for concurrent use.
type Server struct {
	config  Config
	secrets *store
	metrics *metrics
	output  *identityWriter // nil if the identity is not written to files
}

// New returns a server, or an error if config is invalid. The server starts in Run.
func New(config Config) (*Server, error) {
	if err := config.setDefaults(); err != nil {
		return nil, err
	}
	s := &Server{config: config, metrics: newMetrics()}
	s.secrets = newStore(config, s.metrics)
	if source, ok := config.Source.(*FileSource); ok {
		source.timeoutFS.OnHang = s.metrics.stalls.Inc
	}
	if config.Output.Dir != "" && config.Source != nil {
		s.output = newIdentityWriter(config, s.secrets, s.metrics)
	}
	if err := s.metrics.register(config.Metrics, s); err != nil {
		return nil, fmt.Errorf("sds: registering metrics: %w", err)
	}
	return s, nil
}

// Run serves Envoy and runs the source until the context ends; then it returns nil.
func (s *Server) Run(ctx context.Context) error {
	listener, err := uds.ListenFor(s.config.SocketOwner, s.config.Socket, s.config.SocketMode)
	if err != nil {
		return fmt.Errorf("sds: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	server := grpc.NewServer(
		grpc.Creds(uds.ServerCredentials(s.config.AllowedUIDs, s.config.Logger)),
		grpc.ForceServerCodecV2(newCodec()),
		grpc.InTapHandle(s.checkSecret),
		grpc.WaitForHandlers(true),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true}),
	)
	secretv3.RegisterSecretDiscoveryServiceServer(server, &service{server: s})

	var parts sync.WaitGroup
	var sourceErr error
	parts.Go(func() { s.secrets.run(ctx) })
	parts.Go(func() { <-ctx.Done(); server.Stop() })
	if s.output != nil {
		parts.Go(func() { s.output.run(ctx) })
	}
	if s.config.Source != nil {
		parts.Go(func() {
			if sourceErr = s.config.Source.Run(ctx); sourceErr != nil {
				cancel()
			}
		})
	}
	err = server.Serve(listener)
	stopped := ctx.Err() != nil
	cancel()
	parts.Wait()
	if err != nil && !stopped {
		return fmt.Errorf("sds: serving %s: %w", s.config.Socket, err)
	}
	if sourceErr != nil {
		return fmt.Errorf("sds: %w", sourceErr)
	}
	return nil
}

// checkSecret checks the secret in the request's header (see uds.Guard) before gRPC reads the request body.
func (s *Server) checkSecret(ctx context.Context, call *tap.Info) (context.Context, error) {
	var caller uds.Peer
	if p, ok := peer.FromContext(ctx); ok {
		if info, ok := p.AuthInfo.(uds.AuthInfo); ok {
			caller = info.Peer
		}
	}
	return ctx, s.config.Guard.Check(caller, call.Header[uds.SecretHeader])
}

// Health reports whether the served identity is usable, with the reason if not. The identity is usable until its
// certificate expires, even if renewals fail; reason then describes the failure.
func (s *Server) Health() (ok bool, reason string) {
	ok = true
	if s.config.Source != nil {
		ok, reason = s.config.Source.Health()
	}
	problems := s.secrets.problems()
	if s.output != nil {
		problems = append(problems, s.output.problems()...)
	}
	for _, problem := range problems {
		if reason != "" {
			reason += "; "
		}
		reason += problem
	}
	return ok, reason
}

// Certificates describes the served certificates: default, the roots, and the files that Envoy has requested.
func (s *Server) Certificates() []CertificateInfo {
	infos := []CertificateInfo{}
	if source := s.config.Source; source != nil {
		m := source.Current()
		if m.Leaf != nil {
			info := describeChain(DefaultName, source.Name(), m)
			info.NextRotation = source.NextRotation()
			infos = append(infos, info)
		}
		if roots, err := parseCertificates(s.secrets.extraRoots.mergeWith(m.Roots)); err == nil {
			for _, root := range roots {
				infos = append(infos, describeCertificate(RootName, source.Name(), root))
			}
		}
	}
	return append(infos, s.secrets.fileCertificates()...)
}
