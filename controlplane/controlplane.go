// Package controlplane is the embedded control plane: it composes the stores, the registry, the snapshots, the discovery
// server and the certificate authority into one server.
package controlplane

import (
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
	"github.com/pilotfish-mesh/pilotfish/controlplane/envoyfilter"
	"github.com/pilotfish-mesh/pilotfish/controlplane/jwks"
	"github.com/pilotfish-mesh/pilotfish/controlplane/registration"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
	"github.com/pilotfish-mesh/pilotfish/controlplane/translate"
	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
)

// Debounce says how changes are collected before they become one push. The first change of a quiet time is not collected: it
// goes at once.
type Debounce struct {
	After time.Duration // this long after the last change; default 10 ms
	Max   time.Duration // but this long after the first at most; default 1 s
}

// quiet is how long no change came for the next one to be the first of a quiet time.
func (d Debounce) quiet() time.Duration { return 10 * d.After }

// Config is all that a control plane can be told. The zero value of a field is its default.
type Config struct {
	// ConfigDirs are directories (or single files) of YAML, watched.
	ConfigDirs []string
	// Stores are read beside the directories.
	Stores []config.Store
	// StateDir keeps the certificate authority, and the last good versions of documents that are refused. Required.
	StateDir string
	// Address is the IP address to listen on; default 127.0.0.1.
	Address string
	Ports   Ports
	// Listen opens a port; default: net.Listen. It may do so in another network than this process is in.
	Listen func(network, address string) (net.Listener, error)
	// VirtualAddresses, when valid, is a network of IPv4 out of which services without an address get one, for a mesh that
	// captures traffic: by it a service is told from others whose requests cannot be read.
	VirtualAddresses netip.Prefix
	// StartsProxies: the owner starts the proxies, and asks ProxyConfig what with.
	StartsProxies bool
	// MeshConfigFile is a file of Istio's MeshConfig in YAML, watched.
	MeshConfigFile string
	// Mesh is used when there is no MeshConfigFile.
	Mesh *meshconfig.MeshConfig
	// MeshProblems are what is to be said of Mesh, at its places.
	MeshProblems []config.Problem
	// TrustDomain of all identities; default: the mesh configuration's, or that of the authority in the state directory,
	// or cluster.local.
	TrustDomain string
	// TokenIssuer is the address below which those who verify exchanged tokens find the keys, such as
	// https://mesh.example; default: the port for tokens itself, or by the name istiod.istio-system.svc when Address is
	// all of this machine's.
	TokenIssuer string
	// Authority says how the certificate authority signs, and who proves to be whom to it.
	Authority AuthorityConfig
	// Keys says how the keys of RequestAuthentications are fetched.
	Keys     KeyFetching
	Debounce Debounce
	// Admission says how new streams of proxies are let in.
	Admission xds.Admission
	// MaxConnections bounds the connections of proxies, and their streams, at a time; default: as many as leave an eighth of
	// the files that the process may have open, 64 at least, to all else. Negative is no limit.
	MaxConnections int
	// AutomaticScope has sidecars hold the virtual hosts and clusters that their workloads use, and ask for others when they
	// need them. A node's metadata PILOTFISH_SCOPE (automatic, or all) decides for one.
	AutomaticScope bool
	// OnDemandTimeout bounds how long a request or connection waits for what its sidecar asks for, which is as long as no
	// control plane answers; default: translate.DefaultOnDemandTimeout.
	OnDemandTimeout time.Duration
	Logger          *slog.Logger
}

// lastGoodFile is in the state directory. Its name has no ending: the state directory may be inside a configuration
// directory, whose .json files are read.
const lastGoodFile = "last-good"

// registeredFile is there too: the workloads that registered themselves.
const registeredFile = "registered-workloads"

// fewestVirtual is the length of the smallest network that addresses of services are taken out of.
const fewestVirtual = 24

// neverVirtual are networks that no service can have its address in: this host, loopback, link-local and multicast.
var neverVirtual = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("169.254.0.0/16"), netip.MustParsePrefix("224.0.0.0/4"),
}

func (c Config) withDefaults() (Config, error) {
	if c.StateDir == "" {
		return c, errors.New("the control plane has no state directory, where its certificate authority is kept")
	}
	if c.Address == "" {
		c.Address = "127.0.0.1"
	}
	if _, err := netip.ParseAddr(c.Address); err != nil {
		return c, fmt.Errorf("the control plane's address %q is not an IP address: give one of this machine's, or 0.0.0.0 for all", c.Address)
	}
	if v := c.VirtualAddresses; v != (netip.Prefix{}) && (!v.Addr().Is4() || v.Bits() > fewestVirtual) {
		return c, fmt.Errorf("%s is no network of IPv4 with room for the addresses of services: give a /%d or larger that nobody uses, such as 240.240.0.0/16", v, fewestVirtual)
	}
	for _, taken := range neverVirtual {
		if c.VirtualAddresses.Overlaps(taken) {
			return c, fmt.Errorf("%s has addresses in it that connections do not leave a machine by, or that are nobody's alone (%s): give a network that nobody uses, such as 240.240.0.0/16", c.VirtualAddresses, taken)
		}
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
		c.MaxConnections = max(open-keptFiles(open), 1)
	}
	c.Admission.Most = c.MaxConnections
	if c.OnDemandTimeout <= 0 {
		c.OnDemandTimeout = translate.DefaultOnDemandTimeout
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c, nil
}

// Status is what the server knows of itself.
type Status struct {
	// Problems are what is wrong with the configuration as it is written now.
	Problems []config.Problem `json:"problems"`
	// Documents tells what became of each document of the configuration directories.
	Documents []config.Document `json:"documents"`
	// Pending says that changes are known which no client was told of yet.
	Pending bool               `json:"pending"`
	Clients []xds.ClientStatus `json:"clients"`
}

// Server is one control plane. Its methods are safe for concurrent use.
type Server struct {
	cfg       Config
	log       *slog.Logger
	authority *ca.Authority
	dirs      *config.DirStore // nil without directories
	joined    *config.Joined
	registrar *registration.Registrar
	meshFile  *meshFile // nil without a file
	discovery *xds.Server
	feed      *feed
	learned   *learned
	findings  *findings
	keys      *jwks.Fetcher
	// issuerKeys are those of the issuer whose tokens the authority trusts; nil when they are in a file or nowhere.
	issuerKeys *jwks.Fetcher
	closeAudit func() error
	registry   *prometheus.Registry
	ports      *listeners

	comparing chan struct{} // holds one while documents are compared, which is the most there is

	serving atomic.Bool
	close   sync.Once
}

// New loads the certificate authority, reads the configuration and opens the ports; Run serves. A server that is never
// run has to be closed. The errors say what to mend: an expired authority, a state directory that cannot be written, a
// port that is in use and by whom.
func New(cfg Config) (*Server, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	s := &Server{cfg: cfg, log: cfg.Logger, registry: prometheus.NewRegistry(), comparing: make(chan struct{}, 1)}
	for _, step := range []func() error{s.readMesh, s.loadAuthority, s.openStores, s.openKeys, s.composeDiscovery, s.openPorts} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func (s *Server) readMesh() (err error) {
	if s.cfg.MeshConfigFile != "" {
		s.meshFile, err = openMeshFile(s.cfg.MeshConfigFile, s.log)
	}
	return err
}

// mesh is the mesh configuration as it was given; nil is all defaults.
func (s *Server) mesh() *meshconfig.MeshConfig {
	if s.meshFile != nil {
		return s.meshFile.mesh()
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
	s.authority, err = ca.Load(s.cfg.StateDir, options)
	return err
}

func (s *Server) openStores() (err error) {
	var stores []config.Store
	if len(s.cfg.ConfigDirs) > 0 {
		s.dirs, err = config.NewDirStore(config.DirConfig{
			Paths: s.cfg.ConfigDirs, Check: envoyfilter.Check, StartsProxies: s.cfg.StartsProxies, LastGood: filepath.Join(s.cfg.StateDir, lastGoodFile), Logger: s.log,
		})
		if err != nil {
			return err
		}
		stores = append(stores, s.dirs)
	}
	documents := append(stores, s.cfg.Stores...)
	s.registrar = registration.New(registration.Config{
		Groups: config.Join(documents...), File: filepath.Join(s.cfg.StateDir, registeredFile), Logger: s.log, Registerer: s.registry,
	})
	s.joined = config.Join(append(documents, s.registrar)...)
	return nil
}

func (s *Server) composeDiscovery() (err error) {
	s.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	changes := &journal{}
	changes.versions.open(filepath.Join(s.cfg.StateDir, filtersFile), s.log)
	s.learned = openLearned(filepath.Join(s.cfg.StateDir, learnedFile), time.Now, s.log)
	s.discovery, err = xds.NewServer(xds.Config{
		Source: source{
			log: s.log, registrar: s.registrar, journal: changes, learned: s.learned, scoped: s.cfg.AutomaticScope,
			onDemandTimeout: s.cfg.OnDemandTimeout, told: func() { s.findings.note() },
		}, Identify: s.identify, Logger: s.log, Registerer: s.registry,
		Admission: s.cfg.Admission,
	})
	if err != nil {
		return err
	}
	s.findings = &findings{store: s.joined, latest: func() *snapshot.Snapshot { return s.feed.snapshot() }, log: s.log, wake: make(chan struct{}, 1), written: s.writtenAndRejected}
	s.registry.MustRegister(&meshMetrics{latest: s.findings.latest, findings: s.findings.counts, started: time.Now()})
	s.feed = &feed{
		findings: s.findings, journal: changes,
		store: s.joined, mesh: s.mesh, trustDomain: s.authority.TrustDomain(), roots: s.authority.RootPEM, virtual: s.cfg.VirtualAddresses, debounce: s.cfg.Debounce,
		keys: s.keys, keysByProxy: s.cfg.Keys.ByProxy,
		server: s.discovery, metrics: newMetrics(s.registry), log: s.log,
		wake: make(chan struct{}, 1), changed: map[config.Key]struct{}{},
	}
	return nil
}

// Run serves until the context ends, and returns nil then. It can be called once; a new Server on the same state
// directory takes over from a stopped one.
func (s *Server) Run(ctx context.Context) error {
	defer s.Close()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	cancel := s.joined.Subscribe(s.feed.note)
	defer cancel()

	var background sync.WaitGroup
	defer background.Wait()
	defer stop() // before waiting
	background.Go(func() { s.feed.run(ctx) })
	background.Go(func() { s.findings.run(ctx) })
	background.Go(func() { s.learned.run(ctx) })
	background.Go(func() { s.feed.journal.versions.run(ctx) })
	background.Go(func() { _ = s.keys.Run(ctx) }) // ends with the context only
	if s.issuerKeys != nil {
		background.Go(func() { _ = s.issuerKeys.Run(ctx) }) // the same
	}
	background.Go(func() { s.authority.Run(ctx, authorityInterval, s.feed.noteAll) })
	background.Go(func() { _ = s.registrar.Run(ctx) }) // it has no errors
	if s.dirs != nil {
		background.Go(func() {
			if err := s.dirs.Run(ctx); err != nil {
				s.log.Error("the configuration directory is no longer followed", "error", err)
			}
		})
	}
	if s.meshFile != nil {
		background.Go(func() { s.meshFile.run(ctx, s.feed.noteAll) })
	}
	s.serving.Store(true)
	defer s.serving.Store(false)
	s.log.Info("control plane serves", "plain", s.ports.plain.address(), "secure", s.ports.secure.address(),
		"monitoring", s.ports.monitoring.address(), "tokens", s.ports.tokens.address(), "trustDomain", s.authority.TrustDomain())
	return s.ports.serve(ctx, s.discovery.Stop)
}

// Close gives the ports back, of a server that was never run. After Run it does nothing.
func (s *Server) Close() error {
	s.close.Do(func() {
		s.ports.close()
		if s.closeAudit != nil {
			_ = s.closeAudit() // each line was written when it was logged
		}
	})
	return nil
}

// Health says whether clients are served, and why not.
func (s *Server) Health() (bool, string) {
	switch {
	case !s.serving.Load():
		return false, "the server is not running"
	case s.feed.snapshot() == nil:
		return false, "the first configuration is still being built"
	}
	if s.dirs != nil {
		if ok, reason := s.dirs.Health(); !ok {
			// What was read before is in force, so clients are served all the same.
			return true, reason
		}
	}
	return true, ""
}

// Status gives the problems of the configuration and the state of every client.
func (s *Server) Status() Status {
	st := Status{Problems: s.problems(), Documents: []config.Document{}, Pending: s.feed.pending(), Clients: s.discovery.Clients()}
	if s.dirs != nil {
		st.Documents = append(st.Documents, s.dirs.Documents()...)
	}
	return st
}

// problems are what is wrong with the documents themselves, with their names across stores, and with what they refer to.
func (s *Server) problems() []config.Problem {
	return append(s.written(), s.findings.problems()...)
}

// writtenAndRejected are the problems of documents by themselves, and what proxies refuse of what is made of them.
func (s *Server) writtenAndRejected() []config.Problem {
	return append(s.written(), rejections(s.discovery.Clients(), s.joined)...)
}

// written are the problems of the documents by themselves.
func (s *Server) written() []config.Problem {
	all := append([]config.Problem{}, s.cfg.MeshProblems...)
	if s.meshFile != nil {
		all = append(all, s.meshFile.problems()...)
	}
	if s.dirs != nil {
		all = append(all, s.dirs.Problems()...)
	}
	all = append(all, s.joined.Problems()...)
	if latest := s.feed.snapshot(); latest != nil {
		all = append(all, keyProblems(latest, s.keys.Failures())...)
	}
	return config.Unsuppressed(all, s.joined)
}

// Authority is the certificate authority, which also issues tokens.
func (s *Server) Authority() *ca.Authority { return s.authority }

// PlainAddr is where plaintext xDS is served; invalid when that port is closed.
func (s *Server) PlainAddr() netip.AddrPort { return s.ports.plain.address() }

// SecureAddr is where xDS and the CA are served over TLS; invalid when that port is closed.
func (s *Server) SecureAddr() netip.AddrPort { return s.ports.secure.address() }

// MonitoringAddr is where metrics, health and debug pages are served; invalid when that port is closed.
func (s *Server) MonitoringAddr() netip.AddrPort { return s.ports.monitoring.address() }

// TokensAddr is where tokens are exchanged, over HTTPS; invalid when that port is closed.
func (s *Server) TokensAddr() netip.AddrPort { return s.ports.tokens.address() }
