// Package controlplane is the control plane. It combines the document stores, the snapshots of the mesh, the discovery
// server and the certificate authority into one Server, which other programs can embed.
package controlplane

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	meshconfig "istio.io/api/mesh/v1alpha1"

	"github.com/pilotfish-mesh/pilotfish/controlplane/ca"
	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/config/dirstore"
	"github.com/pilotfish-mesh/pilotfish/controlplane/consul"
	"github.com/pilotfish-mesh/pilotfish/controlplane/jwks"
	"github.com/pilotfish-mesh/pilotfish/controlplane/registration"
	"github.com/pilotfish-mesh/pilotfish/controlplane/registry"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
	"github.com/pilotfish-mesh/pilotfish/controlplane/translate"
	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
	"github.com/pilotfish-mesh/pilotfish/internal/loglimit"
	"github.com/pilotfish-mesh/pilotfish/internal/tlspolicy"
)

// Debounce configures how changes are merged into one push. The first change after a quiet time is pushed immediately.
type Debounce struct {
	After time.Duration // a push starts after this time without changes; default 10 ms
	Max   time.Duration // maximum delay of a change; default 1 s
}

// quietTime returns the time without changes after which the next change is pushed immediately.
func (d Debounce) quietTime() time.Duration { return 10 * d.After }

// Config configures a control plane. Zero values select the defaults.
type Config struct {
	// ConfigDirs are the paths of directories or single files with YAML documents. The control plane watches them.
	ConfigDirs []string
	// OnInvalidPolicy selects the effect of a refused policy of which no version was ever accepted; default: deny.
	OnInvalidPolicy config.OnInvalidPolicy
	// Stores are stores of documents in addition to ConfigDirs.
	Stores []config.Store
	// Sources are sources of documents in addition to ConfigDirs, such as a Kubernetes cluster. The server runs them, and
	// serves no proxy until all of them have synced. It serves the metrics of sources that implement
	// prometheus.Collector.
	Sources []Source
	// StateDir is the directory of the certificate authority, the last accepted versions of refused documents and other
	// state. Required.
	StateDir string
	// Address is the IP address on which the control plane listens; default 127.0.0.1.
	Address string
	Ports   Ports
	// HostAddress is the IP address on which the control plane opens the plaintext and monitoring ports. Set it if
	// workloads connect to Address, but must not be able to connect to these two ports. Default: Address.
	HostAddress string
	// Listen opens a listening socket, possibly in another network namespace; default: net.Listen.
	Listen func(network, address string) (net.Listener, error)
	// VirtualAddresses, if valid, is an IPv4 network. Services without an address receive a virtual address from this
	// network. In a mesh with redirection, Envoy needs the address to identify the service of a connection whose
	// content it cannot inspect.
	VirtualAddresses netip.Prefix
	// LocalNetworks are the loopback networks that contain the addresses of a local mesh's workloads.
	LocalNetworks []netip.Prefix
	// NamespaceGatewaySecrets lets every service account of a gateway's namespace read the Secrets of a Gateway, if its
	// proxy has the labels that the Gateway selects. By default, only the accounts of known workloads (WorkloadEntries
	// and Workloads) that the Gateway selects may read them.
	NamespaceGatewaySecrets bool
	// Workloads are the workloads that the caller runs, including those that are not ready.
	Workloads []snapshot.Workload
	// StartsProxies: the caller starts the proxies itself, with the configuration that Server.ProxyConfig returns.
	StartsProxies bool
	// MeshConfigFile is a YAML file with Istio's MeshConfig. The control plane watches it.
	MeshConfigFile string
	// MeshSource is the source of the mesh configuration if MeshConfigFile is empty. The server runs it.
	MeshSource MeshSource
	// Mesh is the mesh configuration if MeshConfigFile is empty and MeshSource is nil.
	Mesh *meshconfig.MeshConfig
	// MeshProblems are findings about Mesh, which the control plane reports with its own findings.
	MeshProblems []config.Problem
	// TrustDomain is the trust domain of all identities. Default: the trust domain of the mesh configuration, otherwise
	// of the authority in the state directory, otherwise cluster.local.
	TrustDomain string
	// TokenIssuer is the base URL at which verifiers of exchanged tokens find the keys, such as https://mesh.example.
	// Default: the address of the token port. If Address is unspecified (0.0.0.0), the host is istiod.istio-system.svc.
	TokenIssuer string
	// Authority configures the certificate authority.
	Authority AuthorityConfig
	// Keys configures how the control plane fetches the keys for RequestAuthentications.
	Keys     KeyFetching
	Debounce Debounce
	// Admission limits the rate and number of new streams of proxies.
	Admission xds.Admission
	// MaxConnections limits the simultaneous connections of proxies, and their streams. Default: the limit of open
	// files, minus a reserve of an eighth, but at least 64 files. Negative means no limit.
	MaxConnections int
	// AuthTimeout is how long a proxy's connection may exist without an authenticated stream, or on the plaintext port
	// without any stream; default 15 s. Negative disables it.
	AuthTimeout time.Duration
	// AutomaticScope limits sidecars to the virtual hosts and clusters that their workloads use. Their Envoys request
	// others on demand. The node metadata PILOTFISH_SCOPE (automatic or all) overrides AutomaticScope for one proxy.
	AutomaticScope bool
	// OnDemandTimeout limits how long a request or connection waits for an on-demand resource if no control plane
	// responds; default: translate.DefaultOnDemandTimeout.
	OnDemandTimeout time.Duration
	// Endpoints restricts the endpoints that documents may use.
	Endpoints registry.EndpointPolicy
	// TLSPolicy restricts the TLS versions and cipher suites of ports 15012 and 15016, and of connections that fetch
	// keys of token issuers. The control plane logs and ignores an unknown policy, as Istio does.
	TLSPolicy tlspolicy.Policy
	// ConfigSourceTokenFile is a file with a token that the control plane sends to the servers of configSources, over TLS.
	ConfigSourceTokenFile string
	// Consul configures a Consul whose services the control plane reads; none if its Address is empty. The server sets
	// TLS.Policy, Parser, Metrics and Logger.
	Consul consul.Config
	// DocumentReaders are the identities of control planes that may read all documents of Istio's kinds, as SPIFFE IDs or
	// NAMESPACE/ACCOUNT. By default, no client may.
	DocumentReaders []string
	// AcceptHTTP10 makes all proxies accept HTTP/1.0. The node metadata HTTP10=1 does so for one proxy.
	AcceptHTTP10 bool
	Logger       *slog.Logger
}

// lastGoodFile, in the state directory, stores the last accepted versions of refused documents. It has no extension,
// because the state directory may be inside a configuration directory, whose .json files the control plane reads.
const lastGoodFile = "last-good"

// registeredFile, in the state directory, stores the auto-registered workloads.
const registeredFile = "registered-workloads"

// maxVirtualBits is the maximum prefix length of VirtualAddresses, so that the network has enough addresses.
const maxVirtualBits = 24

// reservedNetworks contains the networks that VirtualAddresses must not overlap: this host, loopback, link-local and
// multicast.
var reservedNetworks = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("169.254.0.0/16"), netip.MustParsePrefix("224.0.0.0/4"),
}

func (c Config) gatewayAccounts() *snapshot.GatewayAccounts {
	if c.NamespaceGatewaySecrets {
		return nil
	}
	return &snapshot.GatewayAccounts{Workloads: c.Workloads}
}

func (c Config) withDefaults() (Config, error) {
	if c.StateDir == "" {
		return c, errors.New("the certificate authority needs a state directory: set --state-dir (Config.StateDir)")
	}
	if c.Address == "" {
		c.Address = "127.0.0.1"
	}
	if _, err := netip.ParseAddr(c.HostAddress); c.HostAddress != "" && err != nil {
		return c, fmt.Errorf("the control plane's address for this machine, %q, is not an IP address", c.HostAddress)
	}
	if _, err := netip.ParseAddr(c.Address); err != nil {
		return c, fmt.Errorf("the control plane's address %q is not an IP address: use an address of this machine, or 0.0.0.0 for all", c.Address)
	}
	if v := c.VirtualAddresses; v != (netip.Prefix{}) && (!v.Addr().Is4() || v.Bits() > maxVirtualBits) {
		return c, fmt.Errorf("%s is not an IPv4 network large enough for the addresses of services: use an unused /%d or larger, such as 240.240.0.0/16", v, maxVirtualBits)
	}
	for _, reserved := range reservedNetworks {
		if c.VirtualAddresses.Overlaps(reserved) {
			return c, fmt.Errorf("%s overlaps the reserved network %s: use an unused network, such as 240.240.0.0/16", c.VirtualAddresses, reserved)
		}
	}
	if err := c.Endpoints.Check(); err != nil {
		return c, err
	}
	if c.Listen == nil {
		c.Listen = net.Listen
	}
	if c.Debounce.After <= 0 {
		c.Debounce.After = 10 * time.Millisecond
	}
	if c.Debounce.Max <= 0 {
		c.Debounce.Max = time.Second
	}
	if c.MaxConnections == 0 {
		open := openFiles()
		c.MaxConnections = max(open-reservedFiles(open), 1)
	}
	c.Admission.MaxStreams = c.MaxConnections
	if c.Admission.MaxUnauthenticatedStreams = c.MaxConnections; c.Ports.Secure != NoPort {
		c.Admission.MaxUnauthenticatedStreams = max(c.MaxConnections/2, min(c.MaxConnections, 1))
	}
	if c.AuthTimeout == 0 {
		c.AuthTimeout = defaultAuthTimeout
	}
	if c.OnDemandTimeout <= 0 {
		c.OnDemandTimeout = translate.DefaultOnDemandTimeout
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if err := c.TLSPolicy.Check(); err != nil {
		c.Logger.Warn(TLSPolicyVariable+" is unknown, so the control plane ignores it and does not restrict TLS", "error", err)
		c.TLSPolicy = ""
	}
	return c, nil
}

// Status is the state of the server.
type Status struct {
	// Problems are the findings of the current configuration.
	Problems []config.Problem `json:"problems"`
	// Documents lists the documents of the configuration sources and their state.
	Documents []config.Document `json:"documents"`
	// Pending is true if there are changes that have not been pushed yet.
	Pending bool               `json:"pending"`
	Clients []xds.ClientStatus `json:"clients"`
}

// Server is one control plane. Its methods are safe for concurrent use.
type Server struct {
	cfg       Config
	log       *slog.Logger
	authority *ca.Authority
	dirs      *dirstore.Store // nil if there are no ConfigDirs
	// sources are all configuration sources. remote are other control planes and Consul.
	sources []Source
	remote  []config.Store
	// startedSources are the configSources of the mesh configuration at the start.
	startedSources []*meshconfig.ConfigSource
	readers        *documentReaders
	store          *config.MultiStore
	registrar      *registration.Registrar
	meshSource     MeshSource // nil if the mesh configuration does not change
	discovery      *xds.Server
	pushLoop       *pushLoop
	usage          *usageHistory
	analysis       *analysisLoop
	keys           *jwks.Fetcher
	// issuerKeys fetches the keys of Config.Authority.Issuer. It is nil if there is no issuer, or if the keys are in a
	// file.
	issuerKeys *jwks.Fetcher
	closeAudit func() error
	streams    *openStreams
	denyList   *denyList // nil if no file is configured
	// revocations are the certificate revocation lists for agents.
	revocations revocations
	registry    *prometheus.Registry
	ports       *listeners
	// memoryShare is the memory in bytes for the subscriptions of all clients, and for unauthenticated connections.
	memoryShare int64

	compareSlot chan struct{} // semaphore that permits one comparison of documents at a time

	callerLookup sync.Mutex // locked while the process of a local debug caller is looked up

	serving atomic.Bool
	close   sync.Once
}

// New loads the certificate authority, reads the configuration and opens the ports. Run serves on these ports. If the
// caller does not call Run, it must call Close. Errors name the remedy, for example if the root certificate has
// expired, the state directory is not writable, or a port is in use.
func New(cfg Config) (*Server, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	s := &Server{cfg: cfg, log: cfg.Logger, registry: prometheus.NewRegistry(), compareSlot: make(chan struct{}, 1), memoryShare: memoryLimit() / clientShare}
	for _, step := range []func() error{s.readMesh, s.loadAuthority, s.openStores, s.openKeys, s.composeDiscovery, s.openPorts} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func (s *Server) readMesh() (err error) {
	s.meshSource = s.cfg.MeshSource
	if s.cfg.MeshConfigFile != "" {
		s.meshSource, err = openMeshConfig(s.cfg.MeshConfigFile, s.log)
	}
	return err
}

// mesh returns the current mesh configuration. It is nil if none is configured: the defaults then apply.
func (s *Server) mesh() *meshconfig.MeshConfig {
	if s.meshSource != nil {
		return s.meshSource.Mesh()
	}
	return s.cfg.Mesh
}

func (s *Server) loadAuthority() (err error) {
	domain := s.cfg.TrustDomain
	if domain == "" {
		domain = s.mesh().GetTrustDomain()
	}
	options, err := s.authorityOptions(domain)
	if err != nil {
		return err
	}
	if s.authority, err = s.openAuthority(options); err != nil {
		return err
	}
	s.streams = newOpenStreams(s.authority)
	if s.cfg.Authority.DenyList != "" {
		s.denyList, err = openDenyList(s.cfg.Authority.DenyList, s.cfg.StateDir, s.authority, s.streams, &s.revocations, s.log)
	}
	return err
}

func (s *Server) composeDiscovery() (err error) {
	s.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	for _, source := range s.cfg.Sources {
		if metrics, ok := source.(prometheus.Collector); ok {
			s.registry.MustRegister(metrics)
		}
	}
	changes := &changeLog{}
	s.usage = openUsageHistory(filepath.Join(s.cfg.StateDir, usageHistoryFile), time.Now, s.log)
	s.discovery, err = xds.NewServer(xds.Config{
		Source: proxySource{
			log: s.log, refusals: &loglimit.Limiter{}, registrar: s.registrar, changes: changes, usage: s.usage, acceptHTTP10: s.cfg.AcceptHTTP10, onDemandDefault: s.cfg.AutomaticScope,
			onDemandTimeout: s.cfg.OnDemandTimeout, revocations: &s.revocations, readers: s.readers,
		}, Identify: s.identify, Logger: s.log, Registerer: s.registry,
		Admission: s.cfg.Admission, Memory: s.memoryShare,
	})
	if err != nil {
		return err
	}
	s.analysis = &analysisLoop{store: s.store, latest: func() *snapshot.Snapshot { return s.pushLoop.snapshot() }, log: s.log, wake: make(chan struct{}, 1), documentProblems: s.documentAndNACKProblems}
	s.registry.MustRegister(&meshMetrics{latest: s.analysis.latest, counts: s.analysis.counts, started: time.Now()})
	s.pushLoop = &pushLoop{
		analysis: s.analysis, changes: changes,
		store: s.store, mesh: s.mesh, trustDomain: s.authority.TrustDomain(), roots: s.authority.RootPEM, virtual: s.cfg.VirtualAddresses, debounce: s.cfg.Debounce,
		keys: s.keys, keysByProxy: s.cfg.Keys.ByProxy, startsProxies: s.cfg.StartsProxies, gatewayAccounts: s.cfg.gatewayAccounts(), endpoints: &s.cfg.Endpoints,
		server: s.discovery, metrics: newMetrics(s.registry), log: s.log,
		wake: make(chan struct{}, 1), changed: map[config.Key]struct{}{},
	}
	return nil
}

// Run serves until ctx ends, and then returns nil. It returns an error if a port fails. It can be called once. When it
// has returned, a new Server may use the same state directory.
func (s *Server) Run(ctx context.Context) error {
	defer s.Close()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	cancel := s.store.Subscribe(s.pushLoop.note)
	defer cancel()

	var background sync.WaitGroup
	defer background.Wait()
	defer stop() // runs before the wait for the background goroutines
	background.Go(func() {
		if s.awaitSources(ctx) {
			s.pushLoop.run(ctx)
		}
	})
	background.Go(func() { s.analysis.run(ctx) })
	background.Go(func() { s.usage.run(ctx) })
	background.Go(func() { _ = s.keys.Run(ctx) }) // Run returns only when the context ends
	if s.issuerKeys != nil {
		background.Go(func() { _ = s.issuerKeys.Run(ctx) }) // Run returns only when the context ends
	}
	s.revocations.notify = s.pushLoop.noteRevocations
	background.Go(func() {
		s.authority.Run(ctx, s.cfg.Authority.interval(), func() {
			if s.denyList != nil { // before the push, so that it contains the new lists
				s.denyList.writeLists()
			}
			s.pushLoop.noteAll()
		})
	})
	background.Go(func() { _ = s.registrar.Run(ctx) }) // returns no error
	if s.denyList != nil {
		background.Go(func() { s.denyList.run(ctx) })
	}
	for _, source := range s.sources {
		background.Go(func() {
			if err := source.Run(ctx); err != nil {
				s.log.Error("watching a configuration source failed; the control plane does not detect further changes of the source", "error", err)
			}
		})
	}
	if s.meshSource != nil {
		background.Go(func() {
			s.meshSource.Run(ctx, func() {
				s.notifyMeshUsers()
				s.pushLoop.noteAll()
			})
		})
	}
	s.serving.Store(true)
	defer s.serving.Store(false)
	s.log.Info("the control plane listens", "plain", s.ports.plain.address(), "secure", s.ports.secure.address(),
		"monitoring", s.ports.monitoring.address(), "tokens", s.ports.tokens.address(), "trustDomain", s.authority.TrustDomain())
	return s.ports.serve(ctx, s.discovery.Stop)
}

// Close closes the ports of a server whose Run was not called. After Run it has no effect.
func (s *Server) Close() error {
	s.close.Do(func() {
		s.ports.close()
		if s.closeAudit != nil {
			_ = s.closeAudit() // all lines are already written
		}
	})
	return nil
}

// Health reports whether the server serves clients, and the reason if not. ok may be true with a reason: a source
// cannot be read, and its earlier documents are in use.
func (s *Server) Health() (ok bool, reason string) {
	switch {
	case !s.serving.Load():
		return false, "the server is not running"
	case s.pushLoop.snapshot() == nil:
		return false, cmp.Or(s.sourceHealth(), "the first configuration is still being built")
	}
	// If a source cannot be read, the server continues to serve its earlier documents.
	return true, s.sourceHealth()
}

// Status returns the findings of the configuration and the state of every client.
func (s *Server) Status() Status {
	st := Status{Problems: s.problems(), Documents: []config.Document{}, Pending: s.pushLoop.pending(), Clients: s.discovery.Clients()}
	for _, source := range s.sources {
		st.Documents = append(st.Documents, source.Documents()...)
	}
	return st
}

// problems returns all findings: those of single documents, and those about how documents affect each other.
func (s *Server) problems() []config.Problem {
	return append(s.documentProblems(), s.analysis.problems()...)
}

// documentAndNACKProblems returns the findings of single documents, and the NACKs of proxies as findings of the
// documents that caused them.
func (s *Server) documentAndNACKProblems() []config.Problem {
	return append(s.documentProblems(), nackProblems(s.discovery.Clients(), s.store)...)
}

// documentProblems returns the findings that concern single documents, the mesh configuration, the sources and the keys
// of token issuers. It omits suppressed findings.
func (s *Server) documentProblems() []config.Problem {
	all := append([]config.Problem{}, s.cfg.MeshProblems...)
	if s.meshSource != nil {
		all = append(all, s.meshSource.Problems()...)
	}
	all = append(all, s.sourceProblems()...)
	all = append(all, s.store.Problems()...)
	if latest := s.pushLoop.snapshot(); latest != nil {
		all = append(all, keyProblems(latest, s.keys.Failures())...)
	}
	return config.Unsuppressed(all, s.store)
}

// Authority returns the certificate authority, which also issues tokens.
func (s *Server) Authority() *ca.Authority { return s.authority }

// PlainAddr returns the address of the port for plaintext xDS. The address is invalid if the port is disabled.
func (s *Server) PlainAddr() netip.AddrPort { return s.ports.plain.address() }

// SecureAddr returns the address of the port for xDS and the CA over TLS. The address is invalid if the port is
// disabled.
func (s *Server) SecureAddr() netip.AddrPort { return s.ports.secure.address() }

// MonitoringAddr returns the address of the port for metrics, health and debug pages. The address is invalid if the
// port is disabled.
func (s *Server) MonitoringAddr() netip.AddrPort { return s.ports.monitoring.address() }

// TokensAddr returns the address of the port for token exchange over HTTPS. The address is invalid if the port is
// disabled.
func (s *Server) TokensAddr() netip.AddrPort { return s.ports.tokens.address() }
