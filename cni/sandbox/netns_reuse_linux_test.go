package sandbox

import (
	"strconv"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/internal/testns"
)

func TestReusedInodeNumberIsAnotherNamespace(t *testing.T) {
	seen := map[ID]string{} // unique names of removed namespaces
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
			t.Errorf("one namespace has two unique names, %s and %s (%v)", lasting, again, err)
		}
		before, reused := seen[s.ID]
		seen[s.ID] = lasting
		s.Close()
		_ = ns.Handle.Close()
		if reused {
			if before == lasting {
				t.Errorf("two namespaces have the same unique name: %s", lasting)
			}
			return
		}
	}
	t.Skip("the kernel has not reused an inode number")
}

// The main thread cannot be discarded. If it entered a sandbox, the network namespace would exist until the process exits.
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
		t.Errorf("the main thread is in the sandbox: %v", err)
	}
}
