package repair

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

func TestUncheckedPodsAreNotReportedAsIntact(t *testing.T) {
	n := newNode(t, Watch)
	n.start("web", "u1")
	n.config.Scan = func() (SandboxFinder, error) { return nil, errors.New("no /proc") }
	n.repairer().Sweep(t.Context())
	if !slices.Equal(n.checked, []State{Unknown}) || n.captured != 1 {
		t.Errorf("checked %v, %d captured", n.checked, n.captured)
	}
}

func TestRunningPodWithoutFoundSandboxIsReported(t *testing.T) {
	n := newNode(t, Watch)
	n.start("web", "u1")
	p, _ := n.api.Pod("shop", "web")
	p.Status.Phase = "Running"
	n.api.Put(p)
	delete(n.namespaces, "u1")
	r := n.repairer()
	for round := 1; round <= maxUnseen; round++ {
		if len(n.checked) != 0 {
			t.Fatalf("reported after %d checks, although the pod may just have terminated", round-1)
		}
		r.Sweep(t.Context())
	}
	if !slices.Equal(n.checked, []State{Unknown}) || !strings.Contains(n.log.String(), "cannot check the redirection") {
		t.Errorf("checked %v\n%s", n.checked, n.log)
	}
}
