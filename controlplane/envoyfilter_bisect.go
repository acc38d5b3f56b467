package controlplane

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
	"github.com/pilotfish-mesh/pilotfish/controlplane/translate"
	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
)

// filterBisect finds the EnvoyFilters that make one proxy's Envoy reject resources which the control plane's checks
// accept. It generates the resources with the previous version of a filter, then without it, then without the next one
// too, until Envoy accepts them. Then it restores each of those filters once more, since it may not be a cause: a
// rejection for a temporary reason blames no filter. A filter stays left out until the documents change or the proxy
// reconnects. If nothing helps, no filter was the cause, and all are restored. Only the proxy's stream uses it.
type filterBisect struct {
	proxy            *translate.Proxy
	changes          *changeLog
	scheduleAnalysis func() // schedules an analysis after a new finding
	log              *slog.Logger

	now     *bisectRun
	waiting []*bisectRun
	// unresolvable are the versions, generated with all filters, of resources that no trial helped, by type and name.
	// They hold for these filters only, because other filters may have other previous versions.
	unresolvable map[string]string
	filters      []*snapshot.EnvoyFilter
}

// maxWaitingTrials limits the rejections that wait for the end of a trial: one trial often resolves all.
const maxWaitingTrials = 8

// bisectRun is the trial for one rejection.
type bisectRun struct {
	typeURL, reason string
	refused         map[string]string // versions by name
	queue           []*filterCandidate
	current         *filterCandidate
	leftOut         []*filterCandidate // left out, and not sufficient
	found           bool               // Envoy has accepted an attempt
	culprits        []*filterCandidate
	made            map[string]string // versions of the last attempt
	accepted        bool              // the last attempt was accepted
	missing         map[string]bool   // names that differ in the last attempt and are not ACKed yet
}

// filterCandidate is a filter with its alternatives, the best first: itself, the previous version, or no filter (nil).
type filterCandidate struct {
	filter       *snapshot.EnvoyFilter
	alternatives []*snapshot.EnvoyFilter
	untried      []*snapshot.EnvoyFilter // alternatives that were not tried yet
	chosen       *snapshot.EnvoyFilter
	hasEffect    bool // some alternative changed the resources
}

func newCandidate(filter *snapshot.EnvoyFilter, places []*snapshot.EnvoyFilter) *filterCandidate {
	return &filterCandidate{filter: filter, alternatives: places, untried: places}
}

func newFilterBisect(p *translate.Proxy, j *changeLog, told func(), log *slog.Logger) *filterBisect {
	p.FilterOverrides = &translate.FilterOverrides{}
	return &filterBisect{proxy: p, changes: j, scheduleAnalysis: told, log: log, unresolvable: map[string]string{}}
}

// HandleNACK starts a trial, or continues the trial whose attempt was rejected.
func (p proxy) HandleNACK(state xds.State, typeURL string, resources []*xds.Resource, reason string, since time.Time) xds.PushScope {
	s, ok := state.(*snapshot.Snapshot)
	if !ok || p.bisect == nil {
		return nil
	}
	t := p.bisect
	scope := t.dropRemoved(p, s)
	names := p.currentNames(s, typeURL, resources)
	if t.now != nil && t.now.isAffectedBy(typeURL, names) {
		return t.continueTrial(p, s, false)
	}
	next := p.newTrial(s, typeURL, names, reason, since)
	switch {
	case len(next.queue) == 0:
		return scope
	case t.now == nil:
		t.now = next
		return unionScope(scope, t.continueTrial(p, s, false), typeURL)
	case len(t.waiting) < maxWaitingTrials:
		t.waiting = append(t.waiting, next)
	}
	return scope
}

// dropRemoved drops removed filters, and a trial of a removed filter, which would otherwise wait for ever.
func (t *filterBisect) dropRemoved(p proxy, s *snapshot.Snapshot) xds.PushScope {
	filters := s.EnvoyFilters(p.Namespace, p.Labels)
	t.proxy.FilterOverrides.Retain(filters)
	if !slices.Equal(filters, t.filters) {
		t.filters = filters
		clear(t.unresolvable)
	}
	if t.now == nil || slices.Contains(filters, t.now.current.filter) {
		return nil
	}
	scope := t.restore(p, s, slices.Concat(t.now.leftOut, t.now.queue, t.now.culprits))
	t.now = nil
	return scope
}

// restore puts the trial's filters back in force.
func (t *filterBisect) restore(p proxy, s *snapshot.Snapshot, list []*filterCandidate) xds.PushScope {
	var scope xds.PushScope
	for _, one := range list {
		if t.proxy.FilterOverrides.Has(one.filter) {
			t.proxy.FilterOverrides.Restore(one.filter)
			scope = unionScope(scope, alternativesScope(s, p.Proxy, one), t.now.typeURL)
		}
	}
	return scope
}

// HandleACK continues a trial when Envoy has accepted everything that the attempt changed.
func (p proxy) HandleACK(state xds.State, typeURL string, resources []*xds.Resource, removed []string) xds.PushScope {
	s, ok := state.(*snapshot.Snapshot)
	if !ok || p.bisect == nil || p.bisect.now == nil || p.bisect.now.typeURL != typeURL {
		return nil
	}
	t := p.bisect
	t.now.recordAccepted(resources, removed)
	if len(t.now.missing) > 0 {
		return nil
	}
	return t.continueTrial(p, s, true)
}

// newTrial returns a trial of all filters that may contribute to the rejected resources, the likeliest cause first.
func (p proxy) newTrial(s *snapshot.Snapshot, typeURL string, names []string, reason string, since time.Time) *bisectRun {
	next := &bisectRun{typeURL: typeURL, reason: reason, refused: p.currentVersions(s, typeURL, names)}
	filters := s.EnvoyFilters(p.Namespace, p.Labels)
	next.made = next.refused
	maps.DeleteFunc(next.refused, func(name, version string) bool { return p.bisect.unresolvable[typeURL+" "+name] == version })
	if len(filters) == 0 || len(next.refused) == 0 {
		return next
	}
	for _, one := range p.findSuspects(s, typeURL, names, reason, since) {
		i := slices.IndexFunc(filters, func(f *snapshot.EnvoyFilter) bool { return f.Resource == one.Resource })
		if i < 0 || p.FilterOverrides.Has(filters[i]) {
			continue
		}
		if places := p.changes.versions.alternatives(filters[i]); len(places) > 0 {
			next.queue = append(next.queue, newCandidate(filters[i], places))
		}
	}
	return next
}

// currentVersions returns the resources' current versions, without names that do not exist.
func (p proxy) currentVersions(s *snapshot.Snapshot, typeURL string, names []string) map[string]string {
	out := map[string]string{}
	resources, err := p.Generate(s, typeURL, false, names)
	if err != nil {
		return out
	}
	for _, r := range resources {
		out[r.Name] = r.Version
	}
	return out
}

// currentNames returns the names of rejected resources whose current version is the rejected one.
func (p proxy) currentNames(s *snapshot.Snapshot, typeURL string, refused []*xds.Resource) (names []string) {
	for _, r := range refused {
		names = append(names, r.Name)
	}
	now := p.currentVersions(s, typeURL, names)
	names = nil
	for _, r := range refused {
		if now[r.Name] == r.BaseVersion() {
			names = append(names, r.Name)
		}
	}
	return names
}

func (t *bisectRun) isAffectedBy(typeURL string, names []string) bool {
	return t.typeURL == typeURL && slices.ContainsFunc(names, func(name string) bool { return t.missing[name] })
}

// recordAccepted records which resources Envoy accepted. They may differ from the attempt's, because documents change
// meanwhile.
func (t *bisectRun) recordAccepted(resources []*xds.Resource, removed []string) {
	for _, r := range resources {
		delete(t.missing, r.Name)
	}
	for _, name := range removed {
		delete(t.missing, name)
	}
}

// continueTrial starts the next attempt that changes the resources. took reports whether Envoy accepted the last one.
func (t *filterBisect) continueTrial(p proxy, s *snapshot.Snapshot, took bool) xds.PushScope {
	scope, names := xds.PushScope{}, slices.Collect(maps.Keys(t.now.refused))
	for t.now.accepted = took; ; {
		t.evaluateAttempt()
		if !t.now.chooseNext() {
			return t.finish(p, s, scope)
		}
		one := t.now.current
		t.proxy.FilterOverrides.Put(one.filter, one.chosen)
		scope = unionScope(scope, alternativesScope(s, p.Proxy, one), t.now.typeURL)
		made := p.currentVersions(s, t.now.typeURL, names)
		if t.now.missing = changedNames(t.now.made, made, names); len(t.now.missing) > 0 {
			t.now.made, one.hasEffect = made, true
			return scope
		}
	}
}

// changedNames returns the names whose version has changed.
func changedNames(before, made map[string]string, names []string) map[string]bool {
	out := map[string]bool{}
	for _, name := range names {
		if made[name] != before[name] {
			out[name] = true
		}
	}
	return out
}

// evaluateAttempt evaluates the last attempt for the current filter.
func (t *filterBisect) evaluateAttempt() {
	n, one := t.now, t.now.current
	switch {
	case one == nil:
	case n.accepted && !n.found:
		n.queue = nil
		for _, other := range n.leftOut {
			places := append([]*snapshot.EnvoyFilter{other.filter}, t.changes.versions.alternatives(other.filter)...)
			n.queue = append(n.queue, newCandidate(other.filter, places))
		}
		n.queue = append(n.queue, newCandidate(one.filter, []*snapshot.EnvoyFilter{one.filter, one.chosen}))
		n.found, n.current, n.leftOut = true, nil, nil
	case n.accepted:
		n.current = nil
		if one.chosen != one.filter {
			n.culprits = append(n.culprits, one)
		}
	case len(one.untried) > 0: // try the next one
	case !one.hasEffect:
		n.current = nil
		t.proxy.FilterOverrides.Restore(one.filter) // the filter does not affect the resources
	default:
		n.current = nil
		n.leftOut = append(n.leftOut, one)
	}
}

// chooseNext selects the next alternative, and reports whether there is one.
func (n *bisectRun) chooseNext() bool {
	if n.current == nil {
		if len(n.queue) == 0 {
			return false
		}
		n.current, n.queue = n.queue[0], n.queue[1:]
	}
	n.current.chosen, n.current.untried = n.current.untried[0], n.current.untried[1:]
	return true
}

// finish ends a trial.
func (t *filterBisect) finish(p proxy, s *snapshot.Snapshot, scope xds.PushScope) xds.PushScope {
	for _, one := range t.now.culprits {
		t.report(one)
	}
	if t.now.found && len(t.now.leftOut) == 0 {
		return t.startNext(p, s, scope)
	}
	scope = unionScope(scope, t.restore(p, s, t.now.leftOut), t.now.typeURL)
	for name, version := range t.now.refused {
		t.unresolvable[t.now.typeURL+" "+name] = version
	}
	return t.startNext(p, s, scope)
}

// startNext starts the trial of the next waiting rejection that still applies.
func (t *filterBisect) startNext(p proxy, s *snapshot.Snapshot, scope xds.PushScope) xds.PushScope {
	t.now = nil
	for len(t.waiting) > 0 {
		next := t.waiting[0]
		t.waiting = t.waiting[1:]
		if !maps.Equal(p.currentVersions(s, next.typeURL, slices.Collect(maps.Keys(next.refused))), next.refused) {
			continue // the last trial has changed the resources
		}
		t.now = next
		return unionScope(scope, t.continueTrial(p, s, false), next.typeURL)
	}
	return scope
}

// report reports a filter whose resources Envoy rejects.
func (t *filterBisect) report(one *filterCandidate) {
	filter := one.filter
	t.changes.versions.addRefusal(filter.Resource)
	what := "it is left out for such proxies"
	if one.chosen != nil {
		what = "the previous version stays in force for such proxies"
	}
	v := t.proxy.EnvoyVersion
	filter.Note(config.Problem{
		Code: config.PatchSkipped, Severity: config.Error, Key: filter.Key, At: filter.Origin, Field: "spec.configPatches",
		Message: fmt.Sprintf("Envoy %d.%d.%d rejects the patched resources: %s: %s", v[0], v[1], v[2], strings.TrimSpace(t.now.reason), what),
		Remedy:  "correct the patch; it is tried again when the document changes",
	})
	t.log.Warn("an EnvoyFilter yields resources that Envoy rejects: "+what, "proxy", t.proxy.ID, "filter", filter.Key.String(), "at", filter.Origin.String(), "reason", t.now.reason)
	t.scheduleAnalysis()
}

// alternativesScope returns the resources that an alternative of a filter may change.
func alternativesScope(s *snapshot.Snapshot, p *translate.Proxy, one *filterCandidate) xds.PushScope {
	versions := []*config.Resource{one.filter.Resource}
	for _, other := range one.alternatives {
		if other != nil && other != one.filter {
			versions = append(versions, other.Resource)
		}
	}
	return translate.AffectedResources(s, p, snapshot.Change{Resources: map[config.Key][]*config.Resource{one.filter.Key: versions}})
}

// unionScope returns the union of two push scopes and a whole type: resources that were rejected together with a bad
// one are sent again.
func unionScope(a, b xds.PushScope, whole string) xds.PushScope {
	out := xds.PushScope{}
	for _, scope := range []xds.PushScope{a, b} {
		for typeURL, t := range scope {
			if t.All {
				out.AddAll(typeURL)
			} else {
				out.Add(typeURL, t.Names...)
			}
		}
	}
	out.AddAll(whole)
	return out
}
