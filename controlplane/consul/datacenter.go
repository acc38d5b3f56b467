package consul

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/internal/backoff"
)

const (
	// minRetry and maxRetry limit the backoff after failed queries. A session that lasted at least stableAfter resets
	// the backoff.
	minRetry, maxRetry = 200 * time.Millisecond, 15 * time.Second
	stableAfter        = 10 * time.Second
	// minInterval is the minimum time between two responses to the queries of one resource. It limits the load of a
	// resource that changes continuously.
	minInterval = 200 * time.Millisecond
	// defaultPollInterval is the time between two queries for a service that exceeds maxWatches.
	defaultPollInterval = 10 * time.Second
	// maxServices limits the services of a datacenter, and maxInstances the instances of a service.
	maxServices, maxInstances = 20_000, 5_000
	// consulService is the service of Consul's servers, which the source omits.
	consulService = "consul"
	// maxFirstFailures is the number of failed queries after which the source does not wait for a service any longer.
	maxFirstFailures = 5
	// localDatacenter is the label of metrics for the datacenter of the agent.
	localDatacenter = "local"
)

// datacenter follows the services of one datacenter. Source.mu protects its fields.
type datacenter struct {
	source *Source
	name   string // empty for the datacenter of the agent
	label  string // the name in metrics

	services  map[string]*service // by name, in lower case
	listed    bool                // the list of services was read once
	connected bool
	failure   string // why the last session ended; empty while connected
	hidden    bool   // Consul omits services that the token may not read
	omitted   int    // number of services above maxServices
}

// service is one service of a datacenter.
type service struct {
	name, key string // as in Consul, and in lower case
	read      bool   // the instances were read once
	instances []instance
	flaws     []flaw
	failure   string // why the last query failed; empty if it succeeded
	failures  int    // number of failed queries since the last success
}

func newDatacenter(s *Source, name string) *datacenter {
	d := &datacenter{source: s, name: name, label: name, services: map[string]*service{}}
	if name == "" {
		d.label = localDatacenter
	}
	s.cfg.Metrics.connected.WithLabelValues(d.label).Set(0)
	return d
}

// String returns the name for messages.
func (d *datacenter) String() string {
	if d.name == "" {
		return "the agent's datacenter"
	}
	return "datacenter " + d.name
}

// run follows the datacenter until ctx ends.
func (d *datacenter) run(ctx context.Context) {
	retry := backoff.Backoff{Min: minRetry, Max: maxRetry}
	for {
		started := time.Now()
		err := d.runSession(ctx)
		if ctx.Err() != nil {
			return
		}
		d.setDisconnected(err)
		if time.Since(started) >= stableAfter {
			retry.Reset()
		}
		if !backoff.Sleep(ctx, retry.Next()) {
			return
		}
	}
}

// runSession follows the list of services, and starts a follower for each service, until a query for the list fails. A
// session begins without indexes: the server may have lost its state since the previous one.
func (d *datacenter) runSession(ctx context.Context) error {
	var followers sync.WaitGroup
	defer followers.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	running := map[*service]context.CancelFunc{}
	for index := uint64(0); ; {
		started := time.Now()
		tags := map[string][]string{}
		r, err := d.get(ctx, query{path: "/v1/catalog/services", index: index}, &tags)
		if err != nil {
			return err
		}
		if len(tags) == 0 && r.filtered {
			return errHidden
		}
		current := d.update(tags, r.filtered)
		for s, stop := range running {
			if current[s.key] != s {
				stop()
				delete(running, s)
			}
		}
		for _, s := range current {
			if running[s] == nil {
				follower, stop := context.WithCancel(ctx)
				running[s] = stop
				followers.Go(func() { d.follow(follower, s) })
			}
		}
		d.source.checkSynced()
		index = r.index
		if !backoff.Sleep(ctx, minInterval-time.Since(started)) {
			return ctx.Err()
		}
	}
}

// errHidden is the error of a response that contains nothing because of the token. The source does not interpret it as
// the removal of all objects.
var errHidden = errors.New("the token may not read it: Consul requires service:read and node:read")

// get sends a query for the datacenter and counts it.
func (d *datacenter) get(ctx context.Context, q query, out any) (result, error) {
	q.datacenter = d.name
	r, err := d.source.client.get(ctx, q, out)
	outcome := "succeeded"
	if err != nil {
		if ctx.Err() != nil {
			return r, ctx.Err()
		}
		outcome = "failed"
	}
	d.source.cfg.Metrics.responses.WithLabelValues(d.label, outcome).Inc()
	return r, err
}

// update replaces the list of services, and returns the services by name.
func (d *datacenter) update(tags map[string][]string, hidden bool) map[string]*service {
	listed := d.selectServices(tags)
	var removed []*service
	d.source.mu.Lock()
	if !d.connected {
		d.source.log.Info("connected to Consul", "datacenter", d.label)
	}
	d.listed, d.connected, d.failure, d.hidden = true, true, "", hidden
	d.omitted = max(0, len(listed)-maxServices)
	listed = listed[:len(listed)-d.omitted]
	current := make(map[string]*service, len(listed))
	for _, name := range listed {
		key := strings.ToLower(name)
		if current[key] = d.services[key]; current[key] == nil {
			current[key] = &service{name: name, key: key}
		}
	}
	for key, s := range d.services {
		if current[key] == nil {
			removed = append(removed, s)
		}
	}
	d.services = current
	d.source.mu.Unlock()
	metrics := d.source.cfg.Metrics
	metrics.connected.WithLabelValues(d.label).Set(1)
	metrics.services.WithLabelValues(d.label).Set(float64(len(current)))
	for _, s := range removed {
		d.count(s.instances, nil)
		d.source.publish(s.key)
	}
	return maps.Clone(current)
}

// selectServices returns the names of the services to follow, sorted. It omits the service of Consul's servers, and
// services without the configured tags.
func (d *datacenter) selectServices(tags map[string][]string) []string {
	var names []string
	for name, list := range tags {
		if name != consulService && containsAll(list, d.source.cfg.Tags) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// count updates the metric of instances after old was replaced by next.
func (d *datacenter) count(old, next []instance) {
	for _, change := range []struct {
		list []instance
		by   float64
	}{{old, -1}, {next, 1}} {
		for _, i := range change.list {
			health := "failing"
			if i.healthy {
				health = passing
			}
			d.source.cfg.Metrics.instances.WithLabelValues(d.label, health).Add(change.by)
		}
	}
}

func (d *datacenter) setDisconnected(err error) {
	d.source.cfg.Metrics.connected.WithLabelValues(d.label).Set(0)
	d.source.mu.Lock()
	defer d.source.mu.Unlock()
	if d.connected || err.Error() != d.failure {
		d.source.log.Warn("the control plane cannot read Consul; the last known services stay in force", "datacenter", d.label, "error", err)
	}
	d.connected, d.failure = false, err.Error()
}

// isPending reports whether the source waits for the first response for the service.
func (s *service) isPending() bool { return !s.read && s.failures < maxFirstFailures }

// isSynced reports whether all services were read once. The caller must lock Source.mu.
func (d *datacenter) isSynced() bool {
	if !d.listed {
		return false
	}
	for _, s := range d.services {
		if s.isPending() {
			return false
		}
	}
	return true
}

// missing describes what was not read yet; "" if the datacenter is synced. The caller must lock Source.mu.
func (d *datacenter) missing() string {
	if !d.listed {
		return "its services are not known yet"
	}
	unread := 0
	for _, s := range d.services {
		if s.isPending() {
			unread++
		}
	}
	if unread == 0 {
		return ""
	}
	return fmt.Sprintf("the instances of %d services are not known yet", unread)
}

// health returns the reason why the datacenter cannot be read or is not synced, or "". The caller must lock Source.mu.
func (d *datacenter) health() string {
	missing := d.missing()
	switch {
	case d.failure != "" && missing != "":
		return fmt.Sprintf("%s: %s; %s, so proxies receive no configuration", d, d.failure, missing)
	case d.failure != "":
		return fmt.Sprintf("%s: %s; its last known services stay in force", d, d.failure)
	case missing != "":
		return fmt.Sprintf("%s: %s, so proxies receive no configuration", d, missing)
	}
	return ""
}

// problems returns the problems of the datacenter and of single services. The caller must lock Source.mu.
func (d *datacenter) problems() []config.Problem {
	at := config.Position{File: d.source.name}
	var out []config.Problem
	if d.omitted > 0 {
		out = append(out, config.Problem{
			Code: config.Questionable, Severity: config.Warning, At: at,
			Message: fmt.Sprintf("%s has more than %d services; %d of them, the last in name order, are ignored", d, maxServices, d.omitted),
			Remedy:  "select the services of the mesh with --consul-tags",
		})
	}
	if d.hidden {
		out = append(out, config.Problem{
			Code: config.Questionable, Severity: config.Info, At: at, Message: fmt.Sprintf("%s: Consul hides services that the token may not read", d),
			Remedy: "if the mesh needs them, grant the token service:read and node:read for these services and their nodes",
		})
	}
	for _, key := range slices.Sorted(maps.Keys(d.services)) {
		if s := d.services[key]; s.failure != "" && d.connected {
			out = append(out, config.Problem{
				Code: config.SourceUnavailable, Severity: config.Warning, At: at, Key: d.source.cfg.key(key),
				Message: fmt.Sprintf("%s: the service cannot be read: %s; its last known instances stay in force", d, s.failure),
				Remedy:  "check the service in Consul, and the token",
			})
		}
	}
	return out
}
