package sds

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/spiffe/go-spiffe/v2/proto/spiffe/workload"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/pilotfish-mesh/pilotfish/internal/dial"
)

// WorkloadConfig is what a WorkloadSource needs.
type WorkloadConfig struct {
	// Target is where the SPIFFE Workload API is, as gRPC names it: unix:/run/spire/agent.sock, or dns:127.0.0.1:8081.
	Target string
	// SPIFFEID is the identity to take when there are several; the first, when it is not among them.
	SPIFFEID string
	// MinRetry and MaxRetry bound the wait between attempts; zero is 100 ms and 60 s.
	MinRetry, MaxRetry time.Duration
	Logger             *slog.Logger
	// Clock is time; nil is the machine's.
	Clock Clock
}

// mostSVIDs bounds one message of the Workload API.
const mostSVIDs = 8 << 20

// WorkloadSource takes the workload's identity, and the roots of its and other trust domains, from the SPIFFE Workload API
// (SPIRE's agent, for instance), which renews them. What is not good changes nothing, and neither does an end of the stream.
type WorkloadSource struct {
	config WorkloadConfig
	subscribers

	mu       sync.Mutex
	material Material
	problem  error
	alarm    alarm
}

// NewWorkloadSource checks the configuration.
func NewWorkloadSource(config WorkloadConfig) (*WorkloadSource, error) {
	if config.Target == "" {
		return nil, errors.New("sds: no address of a SPIFFE Workload API")
	}
	if config.MinRetry <= 0 {
		config.MinRetry = 100 * time.Millisecond
	}
	if config.MaxRetry <= 0 {
		config.MaxRetry = time.Minute
	}
	if config.Logger == nil {
		config.Logger = slog.New(slog.DiscardHandler)
	}
	if config.Clock == nil {
		config.Clock = SystemClock{}
	}
	return &WorkloadSource{config: config}, nil
}

// Name is the API's address.
func (s *WorkloadSource) Name() string { return "SPIFFE Workload API " + s.config.Target }

// Subscribe registers a function to be called after each change.
func (s *WorkloadSource) Subscribe(notify func()) { s.add(notify) }

// NextRotation is not known: who serves the API renews the certificate.
func (s *WorkloadSource) NextRotation() time.Time { return time.Time{} }

// Current is the identity in force.
func (s *WorkloadSource) Current() Material {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.material
}

// Run follows the API until the context ends; then it returns nil.
func (s *WorkloadSource) Run(ctx context.Context) error {
	conn, err := grpc.NewClient(s.config.Target, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithIdleTimeout(0),
		grpc.WithDisableServiceConfig(), grpc.WithNoProxy(), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(mostSVIDs)))
	if err != nil {
		return fmt.Errorf("SPIFFE Workload API %s: %w", s.config.Target, err)
	}
	defer func() { _ = conn.Close() }()
	retry := dial.Backoff{Min: s.config.MinRetry, Max: s.config.MaxRetry}
	for ctx.Err() == nil {
		err := s.follow(ctx, workload.NewSpiffeWorkloadAPIClient(conn), retry.Reset)
		if ctx.Err() != nil {
			break
		}
		s.failed(err)
		select {
		case <-s.config.Clock.After(retry.Next()):
		case <-ctx.Done():
		}
	}
	return nil
}

// follow takes what one stream has to give.
func (s *WorkloadSource) follow(ctx context.Context, client workload.SpiffeWorkloadAPIClient, good func()) error {
	ctx, cancel := context.WithCancel(metadata.AppendToOutgoingContext(ctx, "workload.spiffe.io", "true"))
	defer cancel()
	stream, err := client.FetchX509SVID(ctx, &workload.X509SVIDRequest{})
	if err != nil {
		return explainWorkload(err)
	}
	for {
		response, err := stream.Recv()
		if err != nil {
			return explainWorkload(err)
		}
		m, err := s.read(response)
		if err != nil {
			s.failed(fmt.Errorf("what it sent is not used: %w", err))
			continue
		}
		good()
		s.adopt(m)
	}
}

func explainWorkload(err error) error {
	said := status.Convert(err)
	if said.Code() == codes.PermissionDenied {
		return fmt.Errorf("%s: %s: register the workload there", said.Code(), said.Message())
	}
	return fmt.Errorf("%s: %s", said.Code(), said.Message())
}

func (s *WorkloadSource) failed(err error) {
	now := s.config.Clock.Now()
	s.mu.Lock()
	s.problem = err
	var left, life time.Duration
	if leaf := s.material.Leaf; leaf != nil {
		left, life = leaf.NotAfter.Sub(now), leaf.NotAfter.Sub(leaf.NotBefore)
	}
	level, tell := s.alarm.failed(err, left, life, now)
	s.mu.Unlock()
	if tell {
		s.config.Logger.Log(context.Background(), level, "no certificate from the SPIFFE Workload API", "address", s.config.Target,
			"error", err, "lastGoodServed", life > 0)
	}
}

func (s *WorkloadSource) adopt(m Material) {
	s.mu.Lock()
	changed := !m.equal(s.material)
	s.material, s.problem = m, nil
	s.alarm.reset()
	s.mu.Unlock()
	if changed {
		s.config.Logger.Info("identity from the SPIFFE Workload API", "identity", m.Leaf.URIs[0], "notAfter", m.Leaf.NotAfter)
		s.notify()
	}
}

// read checks what the API sent, and gives it as it is served.
func (s *WorkloadSource) read(r *workload.X509SVIDResponse) (Material, error) {
	svid, err := s.choose(r.Svids)
	if err != nil {
		return Material{}, err
	}
	certs, err := x509.ParseCertificates(svid.X509Svid)
	if err != nil {
		return Material{}, fmt.Errorf("the certificate: %w", err)
	}
	roots, err := x509.ParseCertificates(svid.Bundle)
	if err != nil {
		return Material{}, fmt.Errorf("the bundle: %w", err)
	}
	m := Material{
		Chain: encodeCertificates(certs), Roots: encodeCertificates(roots),
		Key: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: svid.X509SvidKey}),
	}
	if m.Leaf, err = parsePair(m.Chain, m.Key); err != nil {
		return Material{}, err
	}
	if err := s.check(m.Leaf, certs[1:], roots, svid.SpiffeId); err != nil {
		return Material{}, err
	}
	return m, m.federate(roots, r.FederatedBundles)
}

// choose takes the wanted identity, or the first.
func (s *WorkloadSource) choose(svids []*workload.X509SVID) (*workload.X509SVID, error) {
	if len(svids) == 0 {
		return nil, errors.New("there is no identity in it")
	}
	for _, svid := range svids {
		if svid.SpiffeId == s.config.SPIFFEID {
			return svid, nil
		}
	}
	return svids[0], nil
}

func (s *WorkloadSource) check(leaf *x509.Certificate, others, roots []*x509.Certificate, id string) error {
	if len(leaf.URIs) != 1 || leaf.URIs[0].String() != id {
		return fmt.Errorf("the certificate is for %v, not for %q", leaf.URIs, id)
	}
	now := s.config.Clock.Now()
	if now.After(leaf.NotAfter) {
		return fmt.Errorf("the certificate expired at %s", leaf.NotAfter)
	}
	options := x509.VerifyOptions{
		Roots: x509.NewCertPool(), Intermediates: x509.NewCertPool(),
		CurrentTime: later(now, leaf.NotBefore), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
	}
	for _, cert := range others {
		options.Intermediates.AddCert(cert)
	}
	for _, cert := range roots {
		options.Roots.AddCert(cert)
	}
	if _, err := leaf.Verify(options); err != nil {
		return fmt.Errorf("the certificate does not lead to a root of its bundle: %w", err)
	}
	if err := checkRoots(roots); err != nil {
		return fmt.Errorf("the bundle: %w", err)
	}
	return nil
}

// federate adds the roots of other trust domains.
func (m *Material) federate(own []*x509.Certificate, bundles map[string][]byte) error {
	if len(bundles) == 0 {
		return nil
	}
	all := own
	m.Domains = map[string][]byte{m.Leaf.URIs[0].Host: m.Roots}
	for _, id := range sortedNames(bundles) {
		domain, err := trustDomain(id)
		if err != nil {
			return err
		}
		roots, err := x509.ParseCertificates(bundles[id])
		if err == nil {
			err = checkRoots(roots)
		}
		if err != nil {
			return fmt.Errorf("the bundle of %s: %w", id, err)
		}
		if len(roots) == 0 || domain == m.Leaf.URIs[0].Host {
			continue
		}
		m.Domains[domain] = encodeCertificates(roots)
		all = append(all, roots...)
	}
	m.Roots = encodeCertificates(all)
	return nil
}

func trustDomain(id string) (string, error) {
	u, err := url.Parse(id)
	if err != nil || u.Scheme != "spiffe" || u.Host == "" || strings.Trim(u.Path, "/") != "" {
		return "", fmt.Errorf("%q is no trust domain", id)
	}
	return u.Host, nil
}

// Health says whether there is a certificate that has not expired.
func (s *WorkloadSource) Health() (ok bool, reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	problem := ""
	if s.problem != nil {
		problem = fmt.Sprintf("%s: %v", s.Name(), s.problem)
	}
	switch leaf := s.material.Leaf; {
	case leaf == nil && problem == "":
		return false, "waiting for an identity from the " + s.Name()
	case leaf == nil:
		return false, "no certificate yet: " + problem
	case s.config.Clock.Now().After(leaf.NotAfter):
		return false, fmt.Sprintf("the certificate expired at %s; %s", leaf.NotAfter.UTC().Format(time.RFC3339), problem)
	}
	return true, problem
}

// Remedy is what a person can do.
func (s *WorkloadSource) Remedy() string {
	return "see that what serves the SPIFFE Workload API runs, and that the workload is registered there"
}
