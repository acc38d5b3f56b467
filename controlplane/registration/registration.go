// Package registration creates a WorkloadEntry for each workload that connects as a member of a WorkloadGroup, and
// removes the entry after the workload disconnects. Its Registrar is a configuration store that contains these entries.
package registration

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// ErrRefused is wrapped by the errors about workloads that cannot be registered. Retries fail until a document changes.
var ErrRefused = errors.New("cannot be registered")

// Config configures a Registrar. Only Groups is required.
type Config struct {
	// Groups is the store that contains the WorkloadGroups.
	Groups config.Store
	// File is the path of a file that stores the registrations with mode 0600, so that they survive a restart of the
	// control plane. Other workloads can then reach the members even before these have connected again. If File is
	// empty, registrations are not stored.
	File string
	// Grace is how long a workload remains registered after its last connection has ended; default 10 s.
	Grace time.Duration
	// LocalNetworks lists the loopback networks that the workloads of a local mesh use.
	LocalNetworks []netip.Prefix
	// ReconnectTimeout is how long workloads that were restored from File may remain disconnected before they are
	// removed; default 1 minute.
	ReconnectTimeout time.Duration
	Logger           *slog.Logger
	Registerer       prometheus.Registerer
}

func (c Config) withDefaults() Config {
	if c.Grace <= 0 {
		c.Grace = 10 * time.Second
	}
	if c.ReconnectTimeout <= 0 {
		c.ReconnectTimeout = time.Minute
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// Workload contains what is known about a connecting workload: its proved service account, and what its proxy reports.
type Workload struct {
	// Group is the name of a WorkloadGroup in Namespace.
	Group     string `json:"group"`
	Namespace string `json:"namespace"`
	// ServiceAccount is the authenticated service account.
	ServiceAccount string `json:"serviceAccount,omitempty"`
	// Address is the address that the workload reports. Source is the source address of its connection.
	Address  netip.Addr        `json:"address"`
	Source   netip.Addr        `json:"-"`
	Labels   map[string]string `json:"labels,omitempty"`
	Network  string            `json:"network,omitempty"`
	Locality string            `json:"locality,omitempty"`
	// HealthChecked: the agent reports the workload's health. The workload is unhealthy until the first report.
	HealthChecked bool `json:"healthChecked,omitempty"`
}

// Registrar registers workloads. It is a configuration store that contains their WorkloadEntries. All methods are safe
// for concurrent use.
type Registrar struct {
	*config.MemoryStore
	cfg     Config
	metrics *metrics
	changed chan struct{} // has one element if Run must save the file or check deadlines

	mu      sync.Mutex
	members map[config.Key]*member
}

// member is a registered workload.
type member struct {
	Workload
	key         config.Key
	connections int
	healthy     bool
	reason      string // the reason why the workload is unhealthy
	overrides   []override
	// expires is the time at which the workload is removed unless it connects again. It is zero while the workload is
	// connected.
	expires time.Time
}

// isInForce reports whether the member's entry must be published, so that other workloads connect to it.
func (m *member) isInForce() bool { return !m.HealthChecked || m.healthy }

// New returns a Registrar with the registrations in Config.File. If the file cannot be read, it logs an error, and
// workloads are registered again when they connect.
func New(cfg Config) *Registrar {
	cfg = cfg.withDefaults()
	r := &Registrar{
		MemoryStore: config.NewMemoryStore(), cfg: cfg, metrics: newMetrics(cfg.Registerer),
		changed: make(chan struct{}, 1), members: map[config.Key]*member{},
	}
	if err := r.load(); err != nil {
		r.cfg.Logger.Error("reading the registered workloads failed; workloads are registered again when they connect", "error", err)
	}
	return r
}

// Registration is one connection of a registered workload.
type Registration struct {
	r        *Registrar
	key      config.Key
	once     sync.Once
	workload Workload // the attributes that this connection reported
	// Labels are the labels of the workload's entry.
	Labels map[string]string
	// Address is the registered address.
	Address netip.Addr
}

// Connect registers the workload w for one connection. The workload remains registered until all its connections have
// ended, plus Config.Grace. Errors describe the remedy.
func (r *Registrar) Connect(w Workload) (*Registration, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	claimed := w
	group, overrides, err := r.checkMembership(&w)
	if err != nil {
		r.metrics.errors.Inc()
		return nil, err
	}
	key := w.key()
	m := r.members[key]
	if m == nil || !slices.Equal(m.overrides, overrides) {
		for _, o := range overrides {
			r.cfg.Logger.Warn("the WorkloadGroup overrides a claim of a workload", "entry", key, "claim", o.claim, "reason", o.result)
		}
	}
	if m == nil {
		m = &member{key: key, reason: "the agent has not reported the workload's health yet"}
		r.members[key] = m
		r.metrics.successes.Inc()
		r.cfg.Logger.Info("registered a workload", "entry", key, "group", w.Group, "address", w.Address)
	} else {
		r.metrics.updates.Inc()
	}
	if m.connections > 0 && !maps.Equal(m.Labels, w.Labels) {
		r.cfg.Logger.Warn("two workloads are connected with the same address and different labels; the WorkloadEntry has the labels of the last workload: use different addresses unless one of the two is about to stop",
			"entry", key, "address", w.Address, "labels", w.Labels, "previousLabels", m.Labels)
	}
	m.Workload, m.overrides, m.expires = w, overrides, time.Time{}
	m.connections++
	entry := newEntry(m, group)
	r.publish(m, entry)
	return &Registration{r: r, key: key, workload: claimed, Labels: entry.Spec.(*networking.WorkloadEntry).GetLabels(), Address: w.Address}, nil
}

// checkMembership checks that w may be a member of its group. It replaces attributes in w that the group does not
// allow, and returns them. The caller must have locked r.mu.
func (r *Registrar) checkMembership(w *Workload) (*config.Resource, []override, error) {
	group, err := r.lookupGroup(*w)
	if err != nil {
		return nil, nil, err
	}
	overrides, err := r.acceptClaims(w, group)
	if err != nil {
		return nil, nil, err
	}
	if m := r.members[w.key()]; m != nil && m.Group != w.Group {
		return nil, nil, fmt.Errorf("the workload at %s %w: a member of WorkloadGroup %s already has the WorkloadEntry name %s: use a shorter name for the group or the network",
			w.Address, ErrRefused, m.Group, m.key)
	}
	return group, overrides, nil
}

// lookupGroup returns the WorkloadGroup of w. It fails if w has another service account than the group.
func (r *Registrar) lookupGroup(w Workload) (*config.Resource, error) {
	key := config.Key{Kind: config.WorkloadGroup, Namespace: w.Namespace, Name: w.Group}
	group := r.cfg.Groups.Get(key)
	if group == nil {
		return nil, fmt.Errorf("the workload at %s %w: %s does not exist: create this document, or unset ISTIO_META_AUTO_REGISTER_GROUP",
			w.Address, ErrRefused, key)
	}
	want := groupAccount(group.Spec.(*networking.WorkloadGroup))
	if w.ServiceAccount != want {
		return nil, fmt.Errorf("the workload at %s %w: its token is for service account %q, but members of %s must have %q: "+
			"set the group's template.serviceAccount, or use another token for the workload", w.Address, ErrRefused, w.ServiceAccount, key, want)
	}
	return group, nil
}

// publish stores entry, the WorkloadEntry of m, or removes it from the store if m is not in force. The caller must have
// locked r.mu.
func (r *Registrar) publish(m *member, entry *config.Resource) {
	if m.isInForce() {
		r.Put(entry)
	} else {
		r.Delete(m.key)
	}
	r.notifyRun()
}

func (r *Registrar) notifyRun() {
	select {
	case r.changed <- struct{}{}:
	default:
	}
}

// HandleHealthReport records the health that the agent reports, and publishes or removes the workload's entry. reason
// is the reason why the workload is unhealthy.
func (g *Registration) HandleHealthReport(healthy bool, reason string) {
	r := g.r
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.members[g.key]
	if m == nil || !m.HealthChecked || m.healthy == healthy && m.reason == reason {
		return
	}
	m.healthy, m.reason = healthy, reason
	r.cfg.Logger.Info("a workload reported its health", "entry", g.key, "healthy", healthy, "reason", reason)
	r.rebuild(m)
}

// rebuild creates the entry of m again, from the current version of its group. If the group no longer accepts m,
// rebuild removes the entry. The caller must have locked r.mu.
func (r *Registrar) rebuild(m *member) {
	group, err := r.lookupGroup(m.Workload)
	if err != nil {
		r.Delete(m.key)
		r.notifyRun()
		return
	}
	r.publish(m, newEntry(m, group))
}

func (r *Registrar) rebuildAll() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range r.members {
		r.rebuild(m)
	}
}

// IsOutdated reports whether the workload would receive other labels or another address if it connected now, because a
// user edited its group. It ignores the reports of the workload's other connections. Otherwise two connections that
// report different attributes would end each other repeatedly.
func (g *Registration) IsOutdated() bool {
	group, err := g.r.lookupGroup(g.workload)
	if err != nil {
		return false
	}
	now := g.workload
	if _, err := g.r.acceptClaims(&now, group); err != nil || now.Address != g.Address {
		return true
	}
	return !maps.Equal(newEntry(&member{Workload: now, key: g.key}, group).Labels, g.Labels)
}

// Disconnect records that the connection has ended. Further calls have no effect.
func (g *Registration) Disconnect() {
	g.once.Do(func() {
		r := g.r
		r.mu.Lock()
		defer r.mu.Unlock()
		m := r.members[g.key]
		if m == nil {
			return
		}
		if m.connections--; m.connections == 0 {
			m.expires = time.Now().Add(r.cfg.Grace)
			r.notifyRun()
		}
	})
}

// Run removes expired workloads, handles changes of WorkloadGroups and saves the file, until ctx ends. It returns nil.
func (r *Registrar) Run(ctx context.Context) error {
	cancel := r.cfg.Groups.Subscribe(r.handleGroupChange)
	defer cancel()
	r.rebuildAll() // groups may have changed since New
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			r.persist()
			return nil
		case <-r.changed:
		case <-timer.C:
		}
		if next := r.removeExpired(time.Now()); !next.IsZero() {
			timer.Reset(time.Until(next))
		}
		r.persist()
	}
}

func (r *Registrar) persist() {
	if err := r.save(); err != nil {
		r.cfg.Logger.Error("saving the registered workloads failed; a restart of the control plane would lose the registrations", "error", err)
	}
}

// removeExpired removes workloads that did not connect again in time. It returns the time at which the next workload
// will expire, or zero if there is none.
func (r *Registrar) removeExpired(now time.Time) (next time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for key, m := range r.members {
		switch {
		case m.expires.IsZero():
		case !m.expires.After(now):
			delete(r.members, key)
			r.Delete(key)
			r.metrics.deletes.Inc()
			r.cfg.Logger.Info("removed a workload that did not reconnect", "entry", key)
		case next.IsZero() || m.expires.Before(next):
			next = m.expires
		}
	}
	return next
}

// handleGroupChange creates the entries of the members of changed groups again.
func (r *Registrar) handleGroupChange(changed []config.Key) {
	groups := map[config.Key]bool{}
	for _, key := range changed {
		groups[key] = key.Kind == config.WorkloadGroup
	}
	// A subscriber must not change the store that notifies it. The Registrar is another store, so changes of entries
	// are allowed here.
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range r.members {
		if groups[config.Key{Kind: config.WorkloadGroup, Namespace: m.Namespace, Name: m.Group}] {
			r.rebuild(m)
		}
	}
}
