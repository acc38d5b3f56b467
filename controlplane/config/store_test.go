package config

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	networking "istio.io/api/networking/v1alpha3"
)

func workload(name, address string) *Resource {
	return &Resource{Key: Key{WorkloadEntry, "default", name}, Spec: &networking.WorkloadEntry{Address: address}}
}

func names(list []*Resource) string {
	var out []string
	for _, r := range list {
		out = append(out, r.Namespace+"/"+r.Name)
	}
	return strings.Join(out, " ")
}

func TestStoreListsInOrderAndNotifiesOnce(t *testing.T) {
	s := NewMemoryStore()
	var reported []string
	cancel := s.Subscribe(func(keys []Key) { reported = append(reported, fmt.Sprint(keys)) })
	other := workload("a", "1.1.1.3")
	other.Namespace = "a-namespace"
	s.Put(workload("b", "1.1.1.1"), workload("a", "1.1.1.2"), other)
	s.Put(workload("b", "1.1.1.1")) // unchanged
	s.Put(workload("b", "1.1.1.9"))
	s.Delete(Key{WorkloadEntry, "default", "a"}, Key{WorkloadEntry, "default", "never"})
	s.Delete(Key{WorkloadEntry, "default", "never"})
	if got := names(s.List(WorkloadEntry)); got != "a-namespace/a default/b" {
		t.Errorf("listed %s", got)
	}
	want := "[WorkloadEntry default/b WorkloadEntry default/a WorkloadEntry a-namespace/a]|[WorkloadEntry default/b]|[WorkloadEntry default/a]"
	if got := strings.Join(reported, "|"); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	cancel()
	s.Delete(Key{WorkloadEntry, "default", "b"})
	if len(reported) != 3 {
		t.Error("notified after the subscription ended")
	}
}

func TestListStaysInOrderThroughChanges(t *testing.T) {
	s, kept := NewMemoryStore(), map[string]bool{}
	for i := range 500 {
		name := fmt.Sprintf("w%d", i*37%100)
		before := s.List(WorkloadEntry)
		was := names(before)
		if kept[name] = !kept[name] || i%3 == 0; kept[name] {
			s.Put(workload(name, fmt.Sprintf("1.1.1.%d", i%200)))
		} else {
			delete(kept, name)
			s.Delete(Key{WorkloadEntry, "default", name})
		}
		var want []string
		for name := range kept {
			want = append(want, "default/"+name)
		}
		slices.Sort(want)
		if got := names(s.List(WorkloadEntry)); got != strings.Join(want, " ") {
			t.Fatalf("change %d: listed %s\nwant %s", i, got, strings.Join(want, " "))
		}
		if got := names(before); got != was {
			t.Fatalf("change %d: a returned list is %s now, and was %s", i, got, was)
		}
	}
}

func TestCallerOwnsTheList(t *testing.T) {
	s := NewMemoryStore()
	s.Put(workload("a", "1.1.1.1"), workload("b", "1.1.1.1"))
	list := s.List(WorkloadEntry)
	list[0] = nil
	if got := names(s.List(WorkloadEntry)); got != "default/a default/b" {
		t.Errorf("listed %s", got)
	}
}

func TestReplacedResourceRetainsCreationTime(t *testing.T) {
	s := NewMemoryStore()
	s.Put(workload("a", "1.1.1.1"))
	created := s.Get(Key{WorkloadEntry, "default", "a"}).Created
	if created.IsZero() {
		t.Fatal("a new resource has no age")
	}
	s.Put(workload("a", "1.1.1.2"))
	if got := s.Get(Key{WorkloadEntry, "default", "a"}).Created; !got.Equal(created) {
		t.Errorf("created %s, then %s", created, got)
	}
	at := time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)
	old := workload("b", "1.1.1.1")
	old.Created = at
	s.Put(old)
	if got := s.Get(old.Key).Created; !got.Equal(at) {
		t.Errorf("its own age became %s", got)
	}
}

func TestSubscribersAreNeverCalledConcurrently(t *testing.T) {
	a, b := NewMemoryStore(), NewMemoryStore()
	joined := NewMultiStore(a, b)
	var busy sync.Mutex
	total := 0
	defer joined.Subscribe(func(keys []Key) {
		if !busy.TryLock() {
			t.Error("called while called")
			return
		}
		defer busy.Unlock()
		joined.List(WorkloadEntry) // reading is allowed
		total += len(keys)
	})()
	var wait sync.WaitGroup
	for i := range 8 {
		wait.Go(func() {
			for j := range 50 {
				[]*MemoryStore{a, b}[i%2].Put(workload(fmt.Sprintf("w%d-%d", i, j), "1.1.1.1"))
			}
		})
	}
	wait.Wait()
	if total != 400 {
		t.Errorf("notified of %d changes", total)
	}
}

func TestMultiStoreReportsHiddenResources(t *testing.T) {
	a, b := NewMemoryStore(), NewMemoryStore()
	joined := NewMultiStore(a, b)
	a.Put(workload("both", "1.1.1.1"))
	b.Put(workload("both", "2.2.2.2"), workload("also", "2.2.2.2"))
	if got := names(joined.List(WorkloadEntry)); got != "default/also default/both" {
		t.Errorf("listed %s", got)
	}
	for _, r := range append(joined.List(WorkloadEntry), joined.Get(Key{WorkloadEntry, "default", "both"})) {
		want := "1.1.1.1"
		if r.Name == "also" {
			want = "2.2.2.2"
		}
		if got := r.Spec.(*networking.WorkloadEntry).Address; got != want {
			t.Errorf("%s has %s", r.Name, got)
		}
	}
	if p := joined.Problems(); len(p) != 1 || p[0].Key.Name != "both" || p[0].Severity != Error {
		t.Errorf("problems %v", p)
	}
	a.Delete(Key{WorkloadEntry, "default", "both"})
	if got := joined.Get(Key{WorkloadEntry, "default", "both"}).Spec.(*networking.WorkloadEntry).Address; got != "2.2.2.2" {
		t.Errorf("after the first is removed: %s", got)
	}
}
