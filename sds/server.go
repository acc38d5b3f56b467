// Package sds gives Envoy its certificates: it serves Envoy's secret discovery service on a unix socket, out of sources
// that get the workload's certificate from a certificate authority by CSR, or from files. What was once good is served
// until something better has been checked: a certificate authority that is away, slow, or talks nonsense changes
// nothing.
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

	"github.com/pilotfish-mesh/pilotfish/internal/owner"
	"github.com/pilotfish-mesh/pilotfish/internal/uds"
)

// The names of the resources that every proxy asks for.
const (
	DefaultName = "default"
	RootName    = "ROOTCA"
)

// Config is what a Server needs.
type Config struct {
	// Socket is the path of the unix socket that Envoy connects to, relative to the working directory or absolute.
	Socket string
	// SocketMode is the mode of the socket; zero is 0600.
	SocketMode fs.FileMode
	// SocketOwner is who the socket is to be of; nil is this process's user.
	SocketOwner *owner.Owner
	// AllowedUIDs are the users that may connect; nil is this process's own, root, and 1337.
	AllowedUIDs []uint32
	// Source gives "default" and "ROOTCA"; nil serves files only.
	Source Source
	// Output, when it has a directory, is where the identity is written for programs that do not speak SDS.
	Output Output
	// KeyProvider has Envoy use keys by an accelerator; nil for none.
	KeyProvider *KeyProvider
	// CRLFile holds lists of revoked certificates that go with the roots; it need not be there, and is watched. Empty for
	// none.
	CRLFile string
	// Debounce is how long files have to be quiet after a change before they are read; zero is 100 ms.
	Debounce time.Duration

	Logger *slog.Logger
	// Metrics is where the server's metrics are registered; nil for nowhere.
	Metrics prometheus.Registerer
	// Clock is time; nil is the machine's.
	Clock Clock
}

func (c *Config) setDefaults() error {
	if c.Socket == "" {
		return errors.New("sds: no socket path given")
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
		c.Clock = SystemClock{}
	}
	return nil
}

// Server serves secrets to Envoy. Its methods are safe for concurrent use.
type Server struct {
	config  Config
	secrets *store
	metrics *metrics
	output  *outlet // nil when the identity is written nowhere
}

// New checks the configuration. It does nothing yet: Run does.
func New(config Config) (*Server, error) {
	if err := config.setDefaults(); err != nil {
		return nil, err
	}
	s := &Server{config: config, metrics: newMetrics()}
	s.secrets = newStore(config, s.metrics)
	if source, ok := config.Source.(*FileSource); ok {
		source.disks.Stood = s.metrics.stalls.Inc
	}
	if config.Output.Dir != "" && config.Source != nil {
		s.output = newOutlet(config, s.secrets, s.metrics)
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

// Health says whether Envoy can be given its identity, and why not. A certificate that cannot be renewed is good until
// it expires; that it cannot is in the reason.
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

// Certificates describes what is served: default, the roots, and the files that Envoy asks for.
func (s *Server) Certificates() []CertificateInfo {
	infos := []CertificateInfo{}
	if source := s.config.Source; source != nil {
		m := source.Current()
		if m.Leaf != nil {
			info := describeChain(DefaultName, source.Name(), m)
			info.NextRotation = source.NextRotation()
			infos = append(infos, info)
		}
		if roots, err := parseCertificates(s.secrets.anchors.join(m.Roots)); err == nil {
			for _, root := range roots {
				infos = append(infos, describeCertificate(RootName, source.Name(), root))
			}
		}
	}
	return append(infos, s.secrets.fileCertificates()...)
}
