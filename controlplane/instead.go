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

// trials finds out which EnvoyFilters make one proxy's Envoy refuse resources that no check here finds anything wrong with.
// The resources are made anew, with the version of a filter that was in force before, then without it, then without the
// next one too, until the Envoy takes them; and then with each of those again, since it may have been none of the causes: what
// an Envoy refuses for a reason that passes convicts nobody. What is left out stays so until the documents change or the
// proxy comes back. Where nothing helps no filter was the cause, and all stay. It is used by its proxy's stream only.
type trials struct {
	proxy   *translate.Proxy
	journal *journal
	told    func() // there is something to say of documents
	log     *slog.Logger

	now     *trial
	waiting []*trial
	// hopeless are the versions, as all filters make them, of resources that no trial helped, by type and name: of these
	// filters, since others may have other versions before them.
	hopeless map[string]string
	filters  []*snapshot.EnvoyFilter
}

// maxWaiting bounds the refusals that wait for the end of a trial: one trial often does for all.
const maxWaiting = 8

// trial is one refusal that is looked into.
type trial struct {
	typeURL, reason string
	refused         map[string]string // versions by name
	queue           []*accused
	current         *accused
	out             []*accused // those that are left out and were not enough
	found           bool       // the Envoy took it once
	culprits        []*accused
	made            map[string]string // versions of the last attempt
	took            bool              // what came of that
	missing         map[string]bool   // what differs in it and was not accepted yet
}

// accused is a filter with what may stand in its place, the best first: itself, an earlier version, nothing (nil).
type accused struct {
	filter  *snapshot.EnvoyFilter
	places  []*snapshot.EnvoyFilter
	options []*snapshot.EnvoyFilter // those that were not tried yet
	chosen  *snapshot.EnvoyFilter
	matters bool // any of them made a difference
}

func accuse(filter *snapshot.EnvoyFilter, places []*snapshot.EnvoyFilter) *accused {
	return &accused{filter: filter, places: places, options: places}
}

func newTrials(p *translate.Proxy, j *journal, told func(), log *slog.Logger) *trials {
	p.Instead = &translate.Instead{}
	return &trials{proxy: p, journal: j, told: told, log: log, hopeless: map[string]string{}}
}

// Refused begins a trial, or goes on with the one that this is the answer to.
func (p proxy) Refused(state xds.State, typeURL string, resources []*xds.Resource, reason string, since time.Time) xds.Touches {
	s, ok := state.(*snapshot.Snapshot)
	if !ok || p.trials == nil {
		return nil
	}
	t := p.trials
	touches := t.dropOverdue(p, s)
	names := p.current(s, typeURL, resources)
	if t.now != nil && t.now.concerns(typeURL, names) {
		return t.goOn(p, s, false)
	}
	next := p.newTrial(s, typeURL, names, reason, since)
	switch {
	case len(next.queue) == 0:
		return touches
	case t.now == nil:
		t.now = next
		return joined(touches, t.goOn(p, s, false), typeURL)
	case len(t.waiting) < maxWaiting:
		t.waiting = append(t.waiting, next)
	}
	return touches
}

// dropOverdue forgets filters that are no longer there, and a trial that was about one: that is not over if what it waits for
// is not there either.
func (t *trials) dropOverdue(p proxy, s *snapshot.Snapshot) xds.Touches {
	filters := s.EnvoyFilters(p.Namespace, p.Labels)
	t.proxy.Instead.Keep(filters)
	if !slices.Equal(filters, t.filters) {
		t.filters = filters
		clear(t.hopeless)
	}
	if t.now == nil || slices.Contains(filters, t.now.current.filter) {
		return nil
	}
	touches := t.restore(p, s, slices.Concat(t.now.out, t.now.queue, t.now.culprits))
	t.now = nil
	return touches
}

// restore puts filters of the trial back.
func (t *trials) restore(p proxy, s *snapshot.Snapshot, list []*accused) xds.Touches {
	var touches xds.Touches
	for _, one := range list {
		if t.proxy.Instead.Has(one.filter) {
			t.proxy.Instead.Restore(one.filter)
			touches = joined(touches, touchesOf(s, p.Proxy, one), t.now.typeURL)
		}
	}
	return touches
}

// Accepted goes on with a trial when its Envoy has all that is different in it.
func (p proxy) Accepted(state xds.State, typeURL string, resources []*xds.Resource, removed []string) xds.Touches {
	s, ok := state.(*snapshot.Snapshot)
	if !ok || p.trials == nil || p.trials.now == nil || p.trials.now.typeURL != typeURL {
		return nil
	}
	t := p.trials
	t.now.has(resources, removed)
	if len(t.now.missing) > 0 {
		return nil
	}
	return t.goOn(p, s, true)
}

// newTrial accuses each filter that may have a part in what was refused, the likeliest cause first.
func (p proxy) newTrial(s *snapshot.Snapshot, typeURL string, names []string, reason string, since time.Time) *trial {
	next := &trial{typeURL: typeURL, reason: reason, refused: p.versions(s, typeURL, names)}
	filters := s.EnvoyFilters(p.Namespace, p.Labels)
	next.made = next.refused
	maps.DeleteFunc(next.refused, func(name, version string) bool { return p.trials.hopeless[typeURL+" "+name] == version })
	if len(filters) == 0 || len(next.refused) == 0 {
		return next
	}
	for _, one := range p.suspects(s, typeURL, names, reason, since) {
		i := slices.IndexFunc(filters, func(f *snapshot.EnvoyFilter) bool { return f.Resource == one.Resource })
		if i < 0 || p.Instead.Has(filters[i]) {
			continue
		}
		if places := p.journal.versions.inPlaceOf(filters[i]); len(places) > 0 {
			next.queue = append(next.queue, accuse(filters[i], places))
		}
	}
	return next
}

// versions are those of resources as they are made now; those that are not there have none.
func (p proxy) versions(s *snapshot.Snapshot, typeURL string, names []string) map[string]string {
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

// current names those that are made now as they were refused: what was refused of an earlier version says nothing of this one.
func (p proxy) current(s *snapshot.Snapshot, typeURL string, refused []*xds.Resource) (names []string) {
	for _, r := range refused {
		names = append(names, r.Name)
	}
	now := p.versions(s, typeURL, names)
	names = nil
	for _, r := range refused {
		if now[r.Name] == r.MadeAs() {
			names = append(names, r.Name)
		}
	}
	return names
}

func (t *trial) concerns(typeURL string, names []string) bool {
	return t.typeURL == typeURL && slices.ContainsFunc(names, func(name string) bool { return t.missing[name] })
}

// has books what the Envoy took in the place of what it refused. It need not be what was made for this attempt: documents
// change meanwhile.
func (t *trial) has(resources []*xds.Resource, removed []string) {
	for _, r := range resources {
		delete(t.missing, r.Name)
	}
	for _, name := range removed {
		delete(t.missing, name)
	}
}

// goOn makes the next attempt that makes a difference. took is what came of the last one.
func (t *trials) goOn(p proxy, s *snapshot.Snapshot, took bool) xds.Touches {
	touches, names := xds.Touches{}, slices.Collect(maps.Keys(t.now.refused))
	for t.now.took = took; ; {
		t.book()
		if !t.now.choose() {
			return t.finish(p, s, touches)
		}
		one := t.now.current
		t.proxy.Instead.Put(one.filter, one.chosen)
		touches = joined(touches, touchesOf(s, p.Proxy, one), t.now.typeURL)
		made := p.versions(s, t.now.typeURL, names)
		if t.now.missing = lacking(t.now.made, made, names); len(t.now.missing) > 0 {
			t.now.made, one.matters = made, true
			return touches
		}
	}
}

// lacking is what is made otherwise than before.
func lacking(before, made map[string]string, names []string) map[string]bool {
	out := map[string]bool{}
	for _, name := range names {
		if made[name] != before[name] {
			out[name] = true
		}
	}
	return out
}

// book notes what came of what stands in the place of the filter that is looked at.
func (t *trials) book() {
	n, one := t.now, t.now.current
	switch {
	case one == nil:
	case n.took && !n.found:
		n.queue = nil
		for _, other := range n.out {
			places := append([]*snapshot.EnvoyFilter{other.filter}, t.journal.versions.inPlaceOf(other.filter)...)
			n.queue = append(n.queue, accuse(other.filter, places))
		}
		n.queue = append(n.queue, accuse(one.filter, []*snapshot.EnvoyFilter{one.filter, one.chosen}))
		n.found, n.current, n.out = true, nil, nil
	case n.took:
		n.current = nil
		if one.chosen != one.filter {
			n.culprits = append(n.culprits, one)
		}
	case len(one.options) > 0: // the next of them
	case !one.matters:
		n.current = nil
		t.proxy.Instead.Restore(one.filter) // it has no part in it
	default:
		n.current = nil
		n.out = append(n.out, one)
	}
}

// choose takes the next thing to try, if there is one.
func (n *trial) choose() bool {
	if n.current == nil {
		if len(n.queue) == 0 {
			return false
		}
		n.current, n.queue = n.queue[0], n.queue[1:]
	}
	n.current.chosen, n.current.options = n.current.options[0], n.current.options[1:]
	return true
}

// finish ends a trial.
func (t *trials) finish(p proxy, s *snapshot.Snapshot, touches xds.Touches) xds.Touches {
	for _, one := range t.now.culprits {
		t.tell(one)
	}
	if t.now.found && len(t.now.out) == 0 {
		return t.takeNext(p, s, touches)
	}
	touches = joined(touches, t.restore(p, s, t.now.out), t.now.typeURL)
	for name, version := range t.now.refused {
		t.hopeless[t.now.typeURL+" "+name] = version
	}
	return t.takeNext(p, s, touches)
}

// takeNext looks into the next refusal that is still one.
func (t *trials) takeNext(p proxy, s *snapshot.Snapshot, touches xds.Touches) xds.Touches {
	t.now = nil
	for len(t.waiting) > 0 {
		next := t.waiting[0]
		t.waiting = t.waiting[1:]
		if !maps.Equal(p.versions(s, next.typeURL, slices.Collect(maps.Keys(next.refused))), next.refused) {
			continue // the last trial has changed it
		}
		t.now = next
		return joined(touches, t.goOn(p, s, false), next.typeURL)
	}
	return touches
}

// tell tells of a filter that makes what the Envoy does not take.
func (t *trials) tell(one *accused) {
	filter := one.filter
	t.journal.versions.refused(filter.Resource)
	what := "it is left out for such proxies"
	if one.chosen != nil {
		what = "the version of before stays in force for such proxies"
	}
	v := t.proxy.EnvoyVersion
	filter.Note(config.Problem{
		Code: config.PatchLeftOut, Severity: config.Error, Key: filter.Key, At: filter.Origin, Field: "spec.configPatches",
		Message: fmt.Sprintf("Envoy %d.%d.%d refuses what comes of it: %s: %s", v[0], v[1], v[2], strings.TrimSpace(t.now.reason), what),
		Remedy:  "correct the patch; it is tried again when the document changes",
	})
	t.log.Warn("an EnvoyFilter makes what its Envoy refuses: "+what, "proxy", t.proxy.ID, "filter", filter.Key.String(), "at", filter.Origin.String(), "reason", t.now.reason)
	t.told()
}

// touchesOf is what it may change that something else stands in the place of a filter.
func touchesOf(s *snapshot.Snapshot, p *translate.Proxy, one *accused) xds.Touches {
	versions := []*config.Resource{one.filter.Resource}
	for _, other := range one.places {
		if other != nil && other != one.filter {
			versions = append(versions, other.Resource)
		}
	}
	return translate.Affected(s, p, snapshot.Change{Resources: map[config.Key][]*config.Resource{one.filter.Key: versions}})
}

// joined is what either touches, and all of a type: what was refused along with a bad resource goes again.
func joined(a, b xds.Touches, whole string) xds.Touches {
	out := xds.Touches{}
	for _, touches := range []xds.Touches{a, b} {
		for typeURL, t := range touches {
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
