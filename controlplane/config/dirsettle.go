package config

import (
	"maps"
	"slices"
	"sync"
	"time"
)

// settle decides which of the documents that the files looked at have, or had, are in force, and puts them there. What
// other files say is as it was, and costs nothing.
func (s *DirStore) settle(now time.Time) {
	affected := s.relist()
	s.adopt(affected, now)
	var put []*Resource
	var del []Key
	rank := sync.OnceValue(s.ranks)
	for key := range affected {
		before, next := s.inForce[key], s.elect(key, rank)
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
	slices.SortFunc(put, func(a, b *Resource) int { return compareKeys(a.Key, b.Key) })
	slices.SortFunc(del, compareKeys)
	s.describe(affected)
	if changed := s.apply(put, del); len(changed) > 0 {
		s.log.Info("configuration read", "changed", len(changed), "resources", len(s.inForce), "problems", s.told.count)
	}
}

// relist brings the holders of documents up to date for the files that were looked at. It gives the documents that this
// may concern.
func (s *DirStore) relist() (affected map[Key]bool) {
	affected = map[Key]bool{}
	for path, t := range s.looked {
		for _, key := range t.listed {
			affected[key] = true
			s.unlist(key, path)
		}
		t.listed = t.listed[:0]
		for key := range t.held {
			affected[key] = true
			s.list(key, path, t)
		}
	}
	return affected
}

func (s *DirStore) list(key Key, path string, t *trackedFile) {
	t.listed = append(t.listed, key)
	s.holders[key] = append(s.holders[key], path)
}

func (s *DirStore) unlist(key Key, path string) {
	holders := s.holders[key]
	if len(holders) == 1 && holders[0] == path {
		delete(s.holders, key)
		return
	}
	s.holders[key] = slices.DeleteFunc(holders, func(other string) bool { return other == path })
}

// elect gives the version of a document that is to be in force; nil when no file has a good one. The one that is in force
// stays so while its file has it; else the first file's in order is.
func (s *DirStore) elect(key Key, rank func() map[string]int) *Resource {
	holders := s.holders[key]
	if len(holders) == 0 {
		return nil
	}
	if !slices.Contains(holders, s.owner[key]) {
		s.owner[key] = holders[0]
		if len(holders) > 1 {
			s.owner[key] = slices.MinFunc(holders, func(a, b string) int { return rank()[a] - rank()[b] })
		}
	}
	return s.files[s.owner[key]].held[key].resource
}

func (s *DirStore) ranks() map[string]int {
	ranks := make(map[string]int, len(s.order))
	for i, path := range s.order {
		ranks[path] = i
	}
	return ranks
}

// adopt keeps resources in force whose document was moved to another file and is refused there, also while nobody looked.
func (s *DirStore) adopt(affected map[Key]bool, now time.Time) {
	lost := s.lost(affected, now)
	if len(lost) == 0 {
		return
	}
	for _, path := range s.order {
		t := s.files[path]
		if t.parsed == nil {
			continue
		}
		for _, d := range t.parsed.documents {
			h, ok := lost[d.key]
			if d.resource != nil || d.inert || !ok {
				continue
			}
			t.held[d.key] = h
			s.list(d.key, path, t)
			delete(lost, d.key)
			affected[d.key], s.looked[path] = true, t
		}
	}
}

// lost are the documents that no file has a good version of any more.
func (s *DirStore) lost(affected map[Key]bool, now time.Time) map[Key]held {
	lost := maps.Clone(s.last.byKey)
	if lost == nil {
		lost = map[Key]held{}
	}
	for key := range affected {
		if r := s.inForce[key]; r != nil {
			lost[key] = held{resource: r, since: now, stale: true}
		}
	}
	maps.DeleteFunc(lost, func(key Key, _ held) bool { return len(s.holders[key]) > 0 })
	return lost
}
