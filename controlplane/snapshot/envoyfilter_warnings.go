package snapshot

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// Note is a problem of an EnvoyFilter that was detected when the control plane built the resources of a proxy.
type Note struct {
	// Resource is the name of the resource that was built or skipped.
	Resource string
	// Filter is the EnvoyFilter. Notes of filters that have been removed or replaced are not reported.
	Filter  *config.Resource
	Problem config.Problem
}

// maxNotes limits the stored notes for each proxy and type, and the reported notes for each EnvoyFilter. If a patch is
// skipped on a thousand clusters, a few examples are sufficient.
const maxNotes = 20

// notes contains the notes about the current resources of all proxies. A snapshot shares it with the snapshots that are
// built from it. It is safe for concurrent use.
type notes struct {
	mu      sync.Mutex
	byProxy map[any]*proxyNotes // only proxies with notes
}

type proxyNotes struct {
	ended  <-chan struct{}
	byType map[string][]Note
}

// RecordNotes replaces the notes of one proxy and type about the resources for which made returns true. proxy is a
// pointer that is unique to the connection. When ended is closed, the notes of the proxy are removed.
func (s *Snapshot) RecordNotes(proxy any, ended <-chan struct{}, typeURL string, made func(name string) bool, now []Note) {
	n := s.notes
	n.mu.Lock()
	defer n.mu.Unlock()
	of := n.byProxy[proxy]
	if of == nil {
		if len(now) == 0 {
			return
		}
		of = &proxyNotes{ended: ended, byType: map[string][]Note{}}
		n.byProxy[proxy] = of
	}
	all := append(slices.DeleteFunc(of.byType[typeURL], func(n Note) bool { return made(n.Resource) }), now...)
	if of.byType[typeURL] = all[:min(len(all), maxNotes)]; len(all) > 0 {
		return
	}
	delete(of.byType, typeURL)
	if len(of.byType) == 0 {
		delete(n.byProxy, proxy)
	}
}

// byFilter returns the distinct problems of each EnvoyFilter.
func (n *notes) byFilter() map[*config.Resource]map[config.Problem]bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	out := map[*config.Resource]map[config.Problem]bool{}
	for proxy, of := range n.byProxy {
		select {
		case <-of.ended:
			delete(n.byProxy, proxy)
			continue
		default:
		}
		for _, all := range of.byType {
			for _, note := range all {
				if out[note.Filter] == nil {
					out[note.Filter] = map[config.Problem]bool{}
				}
				out[note.Filter][note.Problem] = true
			}
		}
	}
	return out
}

// EnvoyFilterProblems returns the problems that Note and RecordNotes recorded, at most maxNotes for each EnvoyFilter.
func (s *Snapshot) EnvoyFilterProblems() []config.Problem {
	if s.envoyFilters == nil {
		return nil
	}
	noted := s.notes.byFilter()
	var out []config.Problem
	for _, f := range s.envoyFilters.all {
		problems := f.copyNotes()
		maps.Copy(problems, noted[f.Resource])
		sorted := slices.SortedFunc(maps.Keys(problems), func(a, b config.Problem) int {
			return cmp.Or(strings.Compare(a.Field, b.Field), strings.Compare(a.Value, b.Value), strings.Compare(a.Message, b.Message))
		})
		out = append(out, sorted[:min(len(sorted), maxNotes)]...)
	}
	return out
}
