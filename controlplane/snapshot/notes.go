package snapshot

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// Note is a problem of an EnvoyFilter that shows only in what is made for a proxy.
type Note struct {
	// Resource is the name of what was made, or would have been.
	Resource string
	// Of is the EnvoyFilter. What is noted of one that is no more in force is not told.
	Of      *config.Resource
	Problem config.Problem
}

// maxNotes bounds what is remembered of one proxy and type, and what is told of one EnvoyFilter: with the same patch left out
// at a thousand clusters, some say it all.
const maxNotes = 20

// notes are what showed in what the proxies have now. It is shared by all snapshots that were built from one another, and safe
// for concurrent use.
type notes struct {
	mu      sync.Mutex
	byProxy map[any]*proxyNotes // of those of which there are any
}

type proxyNotes struct {
	ended  <-chan struct{}
	byType map[string][]Note
}

// Noted replaces what was noted of those of a proxy's resources of a type that were made again. proxy is any pointer that stays
// the same as long as the proxy is connected; when ended is closed, all that was noted of it is dropped.
func (s *Snapshot) Noted(proxy any, ended <-chan struct{}, typeURL string, made func(name string) bool, now []Note) {
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

// of gives what is noted of each EnvoyFilter, once each.
func (n *notes) of() map[*config.Resource]map[config.Problem]bool {
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
				if out[note.Of] == nil {
					out[note.Of] = map[config.Problem]bool{}
				}
				out[note.Of][note.Problem] = true
			}
		}
	}
	return out
}

// notedProblems are what shows where EnvoyFilters are applied.
func (s *Snapshot) notedProblems() []config.Problem {
	if s.envoyFilters == nil {
		return nil
	}
	noted := s.notes.of()
	var out []config.Problem
	for _, f := range s.envoyFilters.all {
		problems := f.noted()
		maps.Copy(problems, noted[f.Resource])
		sorted := slices.SortedFunc(maps.Keys(problems), func(a, b config.Problem) int {
			return cmp.Or(strings.Compare(a.Field, b.Field), strings.Compare(a.Value, b.Value), strings.Compare(a.Message, b.Message))
		})
		out = append(out, sorted[:min(len(sorted), maxNotes)]...)
	}
	return out
}
