// Package registration makes a WorkloadEntry of each workload that connects as a member of a WorkloadGroup, and takes it
// back when the workload goes. It is a store of its own beside the documents.
package registration

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// ErrRefused is in the errors of workloads that cannot be registered as they are; another try without a change of the
// documents has no other outcome.
var ErrRefused = errors.New("cannot be registered")

// Config is what a Registrar can be told. Only Groups is required.
type Config struct {
	// Groups is where the WorkloadGroups are.
	Groups config.Store
	// File keeps the registrations over a restart of the control plane, mode 0600: until the workloads have connected
	// again, nobody else is to lose them. Empty keeps nothing.
	File string
	// Grace is how long a workload stays registered after its last connection; default 10 s.
	Grace time.Duration
	// Return is how long workloads of the file have time to connect again; default 1 minute.
	Return     time.Duration
	Logger     *slog.Logger
	Registerer prometheus.Registerer
}

func (c Config) withDefaults() Config {
	if c.Grace <= 0 {
		c.Grace = 10 * time.Second
	}
	if c.Return <= 0 {
		c.Return = time.Minute
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// Workload is what a proxy says of its workload.
type Workload struct {
	// Group is the name of a WorkloadGroup in Namespace.
	Group     string `json:"group"`
	Namespace string `json:"namespace"`
	// ServiceAccount is what the proxy proved.
	ServiceAccount string            `json:"serviceAccount,omitempty"`
	Address        netip.Addr        `json:"address"`
	Labels         map[string]string `json:"labels,omitempty"`
	Network        string            `json:"network,omitempty"`
	Locality       string            `json:"locality,omitempty"`
	// HealthChecked: its agent reports its health, and before the first report it is not healthy.
	HealthChecked bool `json:"healthChecked,omitempty"`
}

// Registrar registers workloads. It is a store of their WorkloadEntries. All methods are safe for concurrent use.
type Registrar struct {
	*config.MemoryStore
	cfg     Config
	metrics *metrics
	changed chan struct{} // the file is behind, or a deadline is nearer; holds one

	mu      sync.Mutex
	members map[config.Key]*member
}

// member is a registered workload.
type member struct {
	Workload
	key         config.Key
	connections int
	healthy     bool
	reason      string // why it is not
	// leaves is when it is struck out, if nobody connects for it before.
	leaves time.Time
}

// inForce says whether others are sent to it.
func (m *member) inForce() bool { return !m.HealthChecked || m.healthy }

// New reads the registrations of before. A file that cannot be read is told of, and otherwise as one that is not there:
// workloads register again when they connect.
func New(cfg Config) *Registrar {
	cfg = cfg.withDefaults()
	r := &Registrar{
		MemoryStore: config.NewMemoryStore(), cfg: cfg, metrics: newMetrics(cfg.Registerer),
		changed: make(chan struct{}, 1), members: map[config.Key]*member{},
	}
	if err := r.load(); err != nil {
		r.cfg.Logger.Error("workloads that registered before are not known until they connect again", "error", err)
	}
	return r
}

// Registration is one connection of a registered workload.
type Registration struct {
	r        *Registrar
	key      config.Key
	once     sync.Once
	workload Workload // as this connection told of it
	// Labels are the workload's with those of its group.
	Labels map[string]string
}

// Connect registers the workload of a connection, until all its connections have ended. The errors say what to mend.
func (r *Registrar) Connect(w Workload) (*Registration, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	group, err := r.group(w)
	if err == nil {
		w.Address, err = reachable(w.Address)
	}
	if err != nil {
		r.metrics.errors.Inc()
		return nil, err
	}
	key := w.key()
	m := r.members[key]
	if m == nil {
		m = &member{key: key, reason: "its agent has not reported yet"}
		r.members[key] = m
		r.metrics.successes.Inc()
		r.cfg.Logger.Info("workload registered", "entry", key, "group", w.Group, "address", w.Address)
	} else {
		r.metrics.updates.Inc()
	}
	if m.connections > 0 && !maps.Equal(m.Labels, w.Labels) {
		r.cfg.Logger.Warn("two workloads connect as one, with other labels, of which those of the last one are in force: give each an address of its own, unless one is about to go",
			"entry", key, "address", w.Address, "labels", w.Labels, "before", m.Labels)
	}
	m.Workload, m.leaves = w, time.Time{}
	m.connections++
	entry := entryOf(m, group)
	r.publish(m, entry)
	return &Registration{r: r, key: key, workload: w, Labels: entry.Spec.(*networking.WorkloadEntry).GetLabels()}, nil
}

// group finds the workload's WorkloadGroup, and checks that the workload may be of it.
func (r *Registrar) group(w Workload) (*config.Resource, error) {
	key := config.Key{Kind: config.WorkloadGroup, Namespace: w.Namespace, Name: w.Group}
	group := r.cfg.Groups.Get(key)
	if group == nil {
		return nil, fmt.Errorf("the workload at %s %w: there is no %s: write that document, or unset ISTIO_META_AUTO_REGISTER_GROUP",
			w.Address, ErrRefused, key)
	}
	want := accountOf(group.Spec.(*networking.WorkloadGroup))
	if w.ServiceAccount != want {
		return nil, fmt.Errorf("the workload at %s %w: it proved service account %q, and members of %s have %q: "+
			"set the group's template.serviceAccount, or give the workload another token", w.Address, ErrRefused, w.ServiceAccount, key, want)
	}
	return group, nil
}

// reachable gives the address as others write it. One that is no endpoint's would make Envoys reject the endpoints of all
// services that the workload is of.
func reachable(a netip.Addr) (netip.Addr, error) {
	if a = a.Unmap(); !a.IsValid() || a.Zone() != "" || a.IsUnspecified() || a.IsMulticast() {
		return a, fmt.Errorf("the workload %w: others cannot call it at %q: set INSTANCE_IP to an address that they reach", ErrRefused, a)
	}
	return a, nil
}

// publish puts the member's entry in force, or takes it out; r.mu is held.
func (r *Registrar) publish(m *member, entry *config.Resource) {
	if m.inForce() {
		r.Put(entry)
	} else {
		r.Delete(m.key)
	}
	r.note()
}

func (r *Registrar) note() {
	select {
	case r.changed <- struct{}{}:
	default:
	}
}

// Report says how the workload is; reason is why it is not healthy.
func (g *Registration) Report(healthy bool, reason string) {
	r := g.r
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.members[g.key]
	if m == nil || !m.HealthChecked || m.healthy == healthy && m.reason == reason {
		return
	}
	m.healthy, m.reason = healthy, reason
	r.cfg.Logger.Info("workload reports its health", "entry", g.key, "healthy", healthy, "reason", reason)
	r.rebuild(m)
}

// rebuild makes a member's entry by its group as it is now; r.mu is held.
func (r *Registrar) rebuild(m *member) {
	group, err := r.group(m.Workload)
	if err != nil {
		r.Delete(m.key)
		r.note()
		return
	}
	r.publish(m, entryOf(m, group))
}

func (r *Registrar) rebuildAll() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range r.members {
		r.rebuild(m)
	}
}

// Relabelled says whether the workload would have other labels if it connected now: those of its group were edited. What
// another connection says of the same workload is no reason: each of two would have the other leave for ever.
func (g *Registration) Relabelled() bool {
	group, err := g.r.group(g.workload)
	if err != nil {
		return false
	}
	now := entryOf(&member{Workload: g.workload, key: g.key}, group)
	return !maps.Equal(now.Labels, g.Labels)
}

// Disconnect says that the connection has ended. It may be called again.
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
			m.leaves = time.Now().Add(r.cfg.Grace)
			r.note()
		}
	})
}

// Run strikes out workloads that went, follows their groups, and keeps the file, until the context ends. It returns nil.
func (r *Registrar) Run(ctx context.Context) error {
	cancel := r.cfg.Groups.Subscribe(r.followGroups)
	defer cancel()
	r.rebuildAll() // groups may have changed since they were last looked at
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			r.keep()
			return nil
		case <-r.changed:
		case <-timer.C:
		}
		if next := r.strikeOut(time.Now()); !next.IsZero() {
			timer.Reset(time.Until(next))
		}
		r.keep()
	}
}

func (r *Registrar) keep() {
	if err := r.save(); err != nil {
		r.cfg.Logger.Error("registrations are not kept, and would be lost with this process", "error", err)
	}
}

// strikeOut removes those whose time is over, and gives the next such time.
func (r *Registrar) strikeOut(now time.Time) (next time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for key, m := range r.members {
		switch {
		case m.leaves.IsZero():
		case !m.leaves.After(now):
			delete(r.members, key)
			r.Delete(key)
			r.metrics.deletes.Inc()
			r.cfg.Logger.Info("workload is gone", "entry", key)
		case next.IsZero() || m.leaves.Before(next):
			next = m.leaves
		}
	}
	return next
}

// followGroups makes the entries anew of groups that changed.
func (r *Registrar) followGroups(changed []config.Key) {
	groups := map[config.Key]bool{}
	for _, key := range changed {
		groups[key] = key.Kind == config.WorkloadGroup
	}
	// Entries are told to subscribers, and stores tell one change at a time: those of another store are told by another.
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range r.members {
		if groups[config.Key{Kind: config.WorkloadGroup, Namespace: m.Namespace, Name: m.Group}] {
			r.rebuild(m)
		}
	}
}
