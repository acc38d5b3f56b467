package consul

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

const (
	// startGrace is how long after New an unavailable source is not yet reported as a finding.
	startGrace = 2 * time.Second
	// maxWatches limits the blocking queries for services. Over HTTP/1.1 each of them needs a connection, of which a
	// Consul agent allows 200 for each client (limits.http_max_conns_per_client).
	maxWatches = 128
	// maxReads limits the concurrent queries that do not block.
	maxReads = 16
)

// Source is a store of the services in Consul. While Consul is unreachable, the last known services stay in force.
type Source struct {
	config.Store // the ServiceEntries
	apply        func(put []*config.Resource, del []config.Key) (changed []config.Key)
	cfg          Config
	client       *client
	name         string // "consul " and the address
	log          *slog.Logger
	synced       chan struct{} // closed when all services of all datacenters were read once
	started      time.Time
	datacenters  []*datacenter

	// watches and reads are semaphores for queries that block, and for those that do not.
	watches, reads chan struct{}

	// publishing is locked while the ServiceEntry of a service is built and applied.
	publishing sync.Mutex

	mu        sync.Mutex
	documents map[string]*document // by the name of the service
}

// document is the ServiceEntry of one service.
type document struct {
	resource *config.Resource // the version in force; nil if none was ever valid
	since    time.Time
	refused  bool // the current version is invalid
	problems []config.Problem
}

// New returns a source without services. Run connects to Consul and reads them.
func New(cfg Config) (*Source, error) {
	cfg = cfg.withDefaults()
	if err := cfg.Check(); err != nil {
		return nil, err
	}
	client, err := newClient(cfg)
	if err != nil {
		return nil, err
	}
	store, apply := config.NewFileStore()
	name := "consul " + client.server.String()
	s := &Source{
		Store: store, apply: apply, cfg: cfg, client: client, name: name, log: cfg.Logger.With("source", name),
		synced: make(chan struct{}), started: time.Now(),
		watches: make(chan struct{}, maxWatches), reads: make(chan struct{}, maxReads), documents: map[string]*document{},
	}
	names := cfg.Datacenters
	if len(names) == 0 {
		names = []string{""}
	}
	for _, name := range names {
		s.datacenters = append(s.datacenters, newDatacenter(s, name))
	}
	return s, nil
}

// Synced returns a channel that is closed when the source has read the services of all datacenters once.
func (s *Source) Synced() <-chan struct{} { return s.synced }

// Run follows the services until ctx ends.
func (s *Source) Run(ctx context.Context) error {
	defer s.client.http.CloseIdleConnections()
	var running sync.WaitGroup
	for _, d := range s.datacenters {
		running.Go(func() { d.run(ctx) })
	}
	running.Wait()
	return nil
}

// publish applies the ServiceEntry of the service with this name, or removes it if no datacenter has usable instances.
func (s *Source) publish(name string) {
	s.publishing.Lock()
	defer s.publishing.Unlock()
	instances, flaws := s.collect(name)
	b := &builder{cfg: s.cfg, source: s.name, name: name, instances: instances}
	b.reportFlaws(flaws)
	if len(instances) == 0 {
		s.remove(name, b.problems)
		return
	}
	valid, problems := b.build()
	s.mu.Lock()
	d := s.documents[name]
	if d == nil {
		d = &document{}
		s.documents[name] = d
	}
	d.problems, d.refused = problems, valid == nil
	if valid != nil && !valid.Equal(d.resource) {
		d.resource, d.since = valid, time.Now()
	}
	s.mu.Unlock()
	if valid != nil {
		s.apply([]*config.Resource{valid}, nil)
	}
}

// remove removes the ServiceEntry of a service. problems are the reasons why it has no usable instances.
func (s *Source) remove(name string, problems []config.Problem) {
	s.mu.Lock()
	if len(problems) > 0 {
		s.documents[name] = &document{refused: true, problems: problems}
	} else {
		delete(s.documents, name)
	}
	s.mu.Unlock()
	s.apply(nil, []config.Key{s.cfg.key(name)})
}

// collect returns the instances of a service in all datacenters.
func (s *Source) collect(name string) (instances []instance, flaws []flaw) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range s.datacenters {
		if service := d.services[name]; service != nil {
			instances = append(instances, service.instances...)
			flaws = append(flaws, service.flaws...)
		}
	}
	slices.SortStableFunc(instances, compareInstances)
	return instances, flaws
}

// maxFlaws limits the reported flaws of one service.
const maxFlaws = 5

func (b *builder) reportFlaws(flaws []flaw) {
	for _, f := range flaws[:min(len(flaws), maxFlaws)] {
		b.warn(f.field, f.value, f.message+"; proxies do not use the instance", f.remedy)
	}
	if more := len(flaws) - maxFlaws; more > 0 {
		b.warn("", "", fmt.Sprintf("%d more instances are invalid", more), "correct the listed ones first")
	}
}

// checkSynced closes the channel synced when all datacenters are synced.
func (s *Source) checkSynced() {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.synced:
		return
	default:
	}
	if slices.ContainsFunc(s.datacenters, func(d *datacenter) bool { return !d.isSynced() }) {
		return
	}
	close(s.synced)
	s.log.Info("the control plane has read the services of Consul", "services", len(s.documents))
}

// Health reports whether all datacenters can be read and were read once, and the reasons if not.
func (s *Source) Health() (ok bool, reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var reasons []string
	for _, d := range s.datacenters {
		if reason := d.health(); reason != "" {
			reasons = append(reasons, fmt.Sprintf("%s: %s", s.name, reason))
		}
	}
	return len(reasons) == 0, strings.Join(reasons, "; ")
}

// Problems returns the problems of the services, and of the connection.
func (s *Source) Problems() []config.Problem {
	var problems []config.Problem
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range s.datacenters {
		if reason := d.health(); reason != "" && time.Since(s.started) >= startGrace {
			problems = append(problems, config.Problem{
				Code: config.SourceUnavailable, Severity: config.Warning, At: config.Position{File: s.name}, Message: reason,
				Remedy: "check the address and the token of Consul, and its log",
			})
		}
		problems = append(problems, d.problems()...)
	}
	for _, name := range slices.Sorted(maps.Keys(s.documents)) {
		problems = append(problems, s.documents[name].problems...)
	}
	return problems
}

// Documents returns the state of each ServiceEntry.
func (s *Source) Documents() []config.Document {
	s.mu.Lock()
	defer s.mu.Unlock()
	var documents []config.Document
	for _, name := range slices.Sorted(maps.Keys(s.documents)) {
		d := s.documents[name]
		state := config.InForce
		switch {
		case d.refused && d.resource != nil:
			state = config.Stale
		case d.refused:
			state = config.Refused
		}
		documents = append(documents, config.Document{Key: s.cfg.key(name), At: config.Position{File: s.name}, State: state, Since: d.since})
	}
	return documents
}
