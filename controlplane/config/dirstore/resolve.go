package dirstore

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// resolveDocuments selects the version in force of each document that a scanned file contains or contained, and updates
// the store.
func (s *Store) resolveDocuments(now time.Time) {
	affected := s.updateHolders()
	s.adoptMoved(affected, now)
	var put []*config.Resource
	var del []config.Key
	rank := sync.OnceValue(s.rankPaths)
	for key := range affected {
		before, next := s.inForce[key], s.selectVersion(key, rank)
		switch {
		case next == nil && before != nil:
			del = append(del, key)
			delete(s.owner, key)
			delete(s.inForce, key)
		case next != before:
			put = append(put, next)
			s.inForce[key] = next
		}
	}
	slices.SortFunc(put, func(a, b *config.Resource) int { return config.CompareKeys(a.Key, b.Key) })
	slices.SortFunc(del, config.CompareKeys)
	s.updateReport(affected)
	if changed := s.apply(put, del); len(changed) > 0 {
		s.log.Info("read the configuration", "changedResources", len(changed), "resources", len(s.inForce), "problems", s.report.count)
	}
}

// updateHolders updates the indexes holders and deniers for the scanned files. It returns the keys of all documents
// that these files contain or contained.
func (s *Store) updateHolders() (affected map[config.Key]bool) {
	affected = map[config.Key]bool{}
	for path, t := range s.scanned {
		for _, key := range t.indexed {
			affected[key] = true
			removePath(s.holders, key, path)
			removePath(s.deniers, key, path)
		}
		t.indexed = t.indexed[:0]
		for key := range t.accepted {
			affected[key] = true
			addPath(s.holders, key, path, t)
		}
		for key := range t.policies {
			affected[key] = true
			addPath(s.deniers, key, path, t)
		}
	}
	return affected
}

func addPath(paths map[config.Key][]string, key config.Key, path string, t *trackedFile) {
	t.indexed = append(t.indexed, key)
	paths[key] = append(paths[key], path)
}

func removePath(paths map[config.Key][]string, key config.Key, path string) {
	left := slices.DeleteFunc(paths[key], func(other string) bool { return other == path })
	if len(left) == 0 {
		delete(paths, key)
		return
	}
	paths[key] = left
}

// selectVersion returns the version of the document key that is in force. A file whose version is in force keeps this
// role while it has a valid version. Otherwise the first file with a valid version provides it. If no file has one,
// selectVersion returns the denial of a refused policy, or nil.
func (s *Store) selectVersion(key config.Key, rank func() map[string]int) *config.Resource {
	holders := s.holders[key]
	if len(holders) == 0 {
		return s.selectDenial(key, rank)
	}
	if !slices.Contains(holders, s.owner[key]) {
		s.owner[key] = holders[0]
		if len(holders) > 1 {
			s.owner[key] = slices.MinFunc(holders, func(a, b string) int { return rank()[a] - rank()[b] })
		}
	}
	return s.files[s.owner[key]].accepted[key].resource
}

// selectDenial returns the denial of the refused policy key, of which no file has a valid version. It returns nil if
// there is no refused policy, or if the policy cannot or must not be denied.
func (s *Store) selectDenial(key config.Key, rank func() map[string]int) *config.Resource {
	paths := slices.DeleteFunc(slices.Clone(s.deniers[key]), func(path string) bool { return !s.parser.IsDenied(s.files[path].policies[key]) })
	if len(paths) == 0 {
		return nil
	}
	first := paths[0]
	if len(paths) > 1 {
		first = slices.MinFunc(paths, func(a, b string) int { return rank()[a] - rank()[b] })
	}
	return s.files[first].policies[key].Denial
}

func (s *Store) rankPaths() map[string]int {
	ranks := make(map[string]int, len(s.order))
	for i, path := range s.order {
		ranks[path] = i
	}
	return ranks
}

// adoptMoved retains the version in force of a document that was moved to another file and is refused there. This
// includes moves before a restart.
func (s *Store) adoptMoved(affected map[config.Key]bool, now time.Time) {
	lost := s.listLost(affected, now)
	if len(lost) == 0 {
		return
	}
	for _, path := range s.order {
		t := s.files[path]
		if t.parsed == nil {
			continue
		}
		for _, d := range t.parsed.Documents {
			h, ok := lost[d.Key]
			if d.Resource != nil || d.Inert || !ok {
				continue
			}
			t.accepted[d.Key] = h
			addPath(s.holders, d.Key, path, t)
			delete(lost, d.Key)
			affected[d.Key], s.scanned[path] = true, t
		}
	}
}

// listLost returns the versions that are in force, or were in force before a restart, and of which no file has a valid
// document any more.
func (s *Store) listLost(affected map[config.Key]bool, now time.Time) map[config.Key]acceptedVersion {
	lost := maps.Clone(s.lastAccepted.byKey)
	if lost == nil {
		lost = map[config.Key]acceptedVersion{}
	}
	for key := range affected {
		if r := s.inForce[key]; r != nil && !r.Denial {
			lost[key] = acceptedVersion{resource: r, since: now, stale: true}
		}
	}
	maps.DeleteFunc(lost, func(key config.Key, _ acceptedVersion) bool { return len(s.holders[key]) > 0 })
	return lost
}
