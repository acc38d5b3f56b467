package sandbox

import (
	"strconv"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/internal/testns"
)

func TestReusedInodeNumberIsAnotherNamespace(t *testing.T) {
	seen := map[ID]string{} // of closed namespaces
	for range 300 {
		ns, err := testns.NewNamespace()
		if err != nil {
			t.Fatal(err)
		}
		s, err := scan(t).Open("/proc/self/fd/" + strconv.Itoa(int(ns.Handle)))
		if err != nil {
			t.Fatal(err)
		}
		lasting, err := s.UniqueName()
		if err != nil {
			t.Fatal(err)
		}
		if again, err := s.UniqueName(); err != nil || again != lasting {
			t.Errorf("one namespace has two names, %s and %s (%v)", lasting, again, err)
		}
		before, reused := seen[s.ID]
		seen[s.ID] = lasting
		s.Close()
		_ = ns.Handle.Close()
		if reused {
			if before == lasting {
				t.Errorf("two namespaces are taken for one: %s", lasting)
			}
			return
		}
	}
	t.Skip("the kernel has given no number twice")
}

// The first thread of a process cannot end, so a sandbox that it has entered would never be freed.
func TestNamingASandboxDoesNotEnterIt(t *testing.T) {
	ns := testns.New(t)
	s, err := scan(t).Open("/proc/self/fd/" + strconv.Itoa(int(ns.Handle)))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for range 100 {
		if _, err := s.UniqueName(); err != nil {
			t.Fatal(err)
		}
	}
	if first, err := idOf("/proc/self/ns/net"); err != nil || first == s.ID {
		t.Errorf("the process is in it: %v", err)
	}
}
