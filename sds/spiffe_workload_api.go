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

	"github.com/pilotfish-mesh/pilotfish/internal/backoff"
)

// SPIFFEConfig configures a SPIFFESource.
type SPIFFEConfig struct {
	// Target is the gRPC target of the SPIFFE Workload API: unix:/run/spire/agent.sock, or dns:127.0.0.1:8081.
	Target string
	// SPIFFEID selects one of several identities. If the API does not return it, the source uses the first identity.
	SPIFFEID string
	// MinRetry and MaxRetry limit the retry delay; default 100 ms and 60 s.
	MinRetry, MaxRetry time.Duration
	Logger             *slog.Logger
	// Clock defaults to the system clock.
	Clock Clock
}

// maxSVIDs limits the size of one message of the Workload API in bytes.
const maxSVIDs = 8 << 20

// SPIFFESource obtains the workload's identity, and the roots of all trust domains, from the SPIFFE Workload API (for
// example, SPIRE's agent), which renews them. Invalid messages and the end of the stream do not change the identity.
type SPIFFESource struct {
	config SPIFFEConfig
	subscribers

	mu         sync.Mutex
	material   Material
	problem    error
	renewalLog renewalLog
}

// NewSPIFFESource returns a source for config, or an error if config is invalid.
func NewSPIFFESource(config SPIFFEConfig) (*SPIFFESource, error) {
	if config.Target == "" {
		return nil, errors.New("sds: the address of the SPIFFE Workload API is not set")
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
		config.Clock = systemClock{}
	}
	return &SPIFFESource{config: config}, nil
}

// Name returns "SPIFFE Workload API" and the target.
func (s *SPIFFESource) Name() string { return "SPIFFE Workload API " + s.config.Target }

// Subscribe registers a function that is called after each change.
func (s *SPIFFESource) Subscribe(notify func()) { s.add(notify) }

// NextRotation returns the zero time: the API's server renews the certificate.
func (s *SPIFFESource) NextRotation() time.Time { return time.Time{} }

// Current returns the identity that is served now.
func (s *SPIFFESource) Current() Material {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.material
}

// Run receives identities from the API until ctx ends; then it returns nil.
func (s *SPIFFESource) Run(ctx context.Context) error {
	conn, err := grpc.NewClient(s.config.Target, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithIdleTimeout(0),
		grpc.WithDisableServiceConfig(), grpc.WithNoProxy(), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxSVIDs)))
	if err != nil {
		return fmt.Errorf("SPIFFE Workload API %s: %w", s.config.Target, err)
	}
	defer func() { _ = conn.Close() }()
	retry := backoff.Backoff{Min: s.config.MinRetry, Max: s.config.MaxRetry}
	for ctx.Err() == nil {
		err := s.receiveUpdates(ctx, workload.NewSpiffeWorkloadAPIClient(conn), retry.Reset)
		if ctx.Err() != nil {
			break
		}
		s.recordFailure(err)
		select {
		case <-s.config.Clock.NewTimer(retry.Next()):
		case <-ctx.Done():
		}
	}
	return nil
}

// receiveUpdates opens a stream and applies its messages until the stream ends. It calls good after each valid message.
func (s *SPIFFESource) receiveUpdates(ctx context.Context, client workload.SpiffeWorkloadAPIClient, good func()) error {
	ctx, cancel := context.WithCancel(metadata.AppendToOutgoingContext(ctx, "workload.spiffe.io", "true"))
	defer cancel()
	stream, err := client.FetchX509SVID(ctx, &workload.X509SVIDRequest{})
	if err != nil {
		return convertWorkloadError(err)
	}
	for {
		response, err := stream.Recv()
		if err != nil {
			return convertWorkloadError(err)
		}
		m, err := s.parseResponse(response)
		if err != nil {
			s.recordFailure(fmt.Errorf("the response is rejected: %w", err))
			continue
		}
		good()
		s.apply(m)
	}
}

func convertWorkloadError(err error) error {
	s := status.Convert(err)
	if s.Code() == codes.PermissionDenied {
		return fmt.Errorf("%s: %s: register the workload with the SPIFFE server", s.Code(), s.Message())
	}
	return fmt.Errorf("%s: %s", s.Code(), s.Message())
}

func (s *SPIFFESource) recordFailure(err error) {
	now := s.config.Clock.Now()
	s.mu.Lock()
	s.problem = err
	var left, life time.Duration
	if leaf := s.material.Leaf; leaf != nil {
		left, life = leaf.NotAfter.Sub(now), leaf.NotAfter.Sub(leaf.NotBefore)
	}
	level, shouldLog := s.renewalLog.recordFailure(err, left, life, now)
	s.mu.Unlock()
	if shouldLog {
		s.config.Logger.Log(context.Background(), level, "the SPIFFE Workload API returned no certificate", "address", s.config.Target,
			"error", err, "lastGoodServed", life > 0)
	}
}

func (s *SPIFFESource) apply(m Material) {
	s.mu.Lock()
	changed := !m.equal(s.material)
	s.material, s.problem = m, nil
	s.renewalLog.reset()
	s.mu.Unlock()
	if changed {
		s.config.Logger.Info("received an identity from the SPIFFE Workload API", "identity", m.Leaf.URIs[0], "notAfter", m.Leaf.NotAfter)
		s.notify()
	}
}

// parseResponse verifies a message and converts it to Material.
func (s *SPIFFESource) parseResponse(r *workload.X509SVIDResponse) (Material, error) {
	svid, err := s.selectSVID(r.Svids)
	if err != nil {
		return Material{}, err
	}
	certs, err := x509.ParseCertificates(svid.X509Svid)
	if err != nil {
		return Material{}, fmt.Errorf("parsing the certificate: %w", err)
	}
	roots, err := x509.ParseCertificates(svid.Bundle)
	if err != nil {
		return Material{}, fmt.Errorf("parsing the bundle: %w", err)
	}
	m := Material{
		Chain: encodeCertificates(certs), Roots: encodeCertificates(roots),
		Key: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: svid.X509SvidKey}),
	}
	if m.Leaf, err = parseKeyPair(m.Chain, m.Key); err != nil {
		return Material{}, err
	}
	if err := s.checkSVID(m.Leaf, certs[1:], roots, svid.SpiffeId); err != nil {
		return Material{}, err
	}
	return m, m.addFederatedRoots(roots, r.FederatedBundles)
}

// selectSVID returns the SVID with the configured SPIFFE ID, or the first SVID.
func (s *SPIFFESource) selectSVID(svids []*workload.X509SVID) (*workload.X509SVID, error) {
	if len(svids) == 0 {
		return nil, errors.New("the response contains no identity")
	}
	for _, svid := range svids {
		if svid.SpiffeId == s.config.SPIFFEID {
			return svid, nil
		}
	}
	return svids[0], nil
}

func (s *SPIFFESource) checkSVID(leaf *x509.Certificate, others, roots []*x509.Certificate, id string) error {
	if len(leaf.URIs) != 1 || leaf.URIs[0].String() != id {
		return fmt.Errorf("the certificate is for %v, not for %q", leaf.URIs, id)
	}
	now := s.config.Clock.Now()
	if now.After(leaf.NotAfter) {
		return fmt.Errorf("the certificate expired at %s", leaf.NotAfter)
	}
	options := x509.VerifyOptions{
		Roots: x509.NewCertPool(), Intermediates: x509.NewCertPool(),
		CurrentTime: maxTime(now, leaf.NotBefore), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
	}
	for _, cert := range others {
		options.Intermediates.AddCert(cert)
	}
	for _, cert := range roots {
		options.Roots.AddCert(cert)
	}
	if _, err := leaf.Verify(options); err != nil {
		return fmt.Errorf("the certificate does not chain to a root of its bundle: %w", err)
	}
	if err := checkRoots(roots); err != nil {
		return fmt.Errorf("checking the trust bundle: %w", err)
	}
	return nil
}

// addFederatedRoots adds the roots of other trust domains. own are the roots of the workload's trust domain.
func (m *Material) addFederatedRoots(own []*x509.Certificate, bundles map[string][]byte) error {
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
			return fmt.Errorf("checking the trust bundle of %s: %w", id, err)
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
		return "", fmt.Errorf("%q is not a trust domain", id)
	}
	return u.Host, nil
}

// Health reports whether the source has an unexpired certificate.
func (s *SPIFFESource) Health() (ok bool, reason string) {
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

// Remedy returns what the user can do about a problem of the Workload API.
func (s *SPIFFESource) Remedy() string {
	return "check that the SPIFFE Workload API is running and that the workload is registered there"
}
