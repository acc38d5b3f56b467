package repair

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"go.uber.org/goleak"

	"github.com/pilotfish-mesh/pilotfish/cni/agentapi"
	"github.com/pilotfish-mesh/pilotfish/cni/kube"
	"github.com/pilotfish-mesh/pilotfish/cni/kube/kubetest"
	"github.com/pilotfish-mesh/pilotfish/cni/sandbox"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
	"github.com/pilotfish-mesh/pilotfish/internal/testns"
	"github.com/pilotfish-mesh/pilotfish/iptables"
	"github.com/pilotfish-mesh/pilotfish/iptables/backends"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// node is a node whose pods have real network namespaces.
type node struct {
	t          *testing.T
	api        *kubetest.Server
	config     Config
	namespaces map[string]*testns.Namespace // by the pod's UID

	mu                sync.Mutex
	acted             []string
	events            []string
	checked           []State
	repairs           int
	choice            backends.Choice
	captured, drifted int
	log               *testenv.Buffer
}

func newNode(t *testing.T, mode Mode) *node {
	n := &node{t: t, api: kubetest.New(t), namespaces: map[string]*testns.Namespace{}, log: &testenv.Buffer{}}
	n.config = Config{
		Mode: mode, LabelKey: "cni.istio.io/uninitialized", LabelValue: "true",
		Pods: n.pods, API: n.api.Client(t), Scan: func() (SandboxFinder, error) { return n, nil },
		Redirection: n, HistoryFile: filepath.Join(t.TempDir(), "repaired"),
		Callbacks: Callbacks{
			Checked: func(s State) { n.locked(func() { n.checked = append(n.checked, s) }) },
			Acted:   func(m Mode, result string) { n.locked(func() { n.acted = append(n.acted, string(m)+" "+result) }) },
			Event: func(e kube.PodEvent) {
				n.locked(func() { n.events = append(n.events, fmt.Sprintf("%s warning=%v: %s", e.Reason, e.Warning, e.Message)) })
			},
			Counted: func(captured, drifted int) { n.locked(func() { n.captured, n.drifted = captured, drifted }) },
		},
		Logger: slog.New(slog.NewTextHandler(n.log, nil)),
	}
	return n
}

func (n *node) locked(f func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	f()
}

func (n *node) pods() []*agentapi.Pod {
	var all []*agentapi.Pod
	for _, name := range []string{"web", "other"} {
		if p, known := n.api.Pod("shop", name); known {
			all = append(all, &p)
		}
	}
	return all
}

// Find implements SandboxFinder.
func (n *node) Find(p *agentapi.Pod, _ []string, _ string) (*sandbox.Sandbox, error) {
	ns := n.namespaces[p.Metadata.UID]
	if ns == nil {
		return nil, sandbox.ErrNone
	}
	x, err := sandbox.Scan("/proc", "/proc/thread-self/ns/net")
	if err != nil {
		return nil, err
	}
	return x.Open("/proc/self/fd/" + strconv.Itoa(int(ns.Handle)))
}

// Check checks the rules in the kernel.
func (n *node) Check(ctx context.Context, s *sandbox.Sandbox, o iptables.Options, prove bool) (CheckResult, error) {
	return Kernel{Choice: n.choice}.Check(ctx, s, o, prove)
}

// Repair counts the calls and applies the rules in the kernel.
func (n *node) Repair(ctx context.Context, s *sandbox.Sandbox, o iptables.Options) error {
	n.locked(func() { n.repairs++ })
	return Kernel{Choice: n.choice}.Repair(ctx, s, o)
}

// start adds a running pod with a network namespace in which the plugin has not installed rules.
func (n *node) start(name, uid string) *testns.Namespace {
	n.t.Helper()
	ns := testns.New(n.t)
	ns.Links(n.t, func(h *netlink.Handle) error {
		lo, err := h.LinkByName("lo")
		if err != nil {
			return err
		}
		addr, err := netlink.ParseAddr("10.1.2.3/32")
		if err != nil {
			return err
		}
		return h.AddrAdd(lo, addr)
	})
	n.namespaces[uid] = ns
	n.api.Put(agentapi.Pod{
		Metadata: agentapi.Metadata{Name: name, Namespace: "shop", UID: uid, Annotations: map[string]string{"sidecar.istio.io/status": "{}"}},
		Spec:     agentapi.PodSpec{NodeName: "n1", Containers: []agentapi.Container{{Name: "app"}, {Name: "istio-proxy"}}},
		Status: agentapi.PodStatus{PodIP: "10.1.2.3", InitContainerStatuses: []agentapi.ContainerStatus{
			{Name: "istio-validation", ContainerID: "containerd://x"}}},
	})
	return ns
}

func (n *node) repairer() *Repairer {
	n.t.Helper()
	r, err := New(n.config)
	if err != nil {
		n.t.Fatal(err)
	}
	return r
}

func (n *node) wantActs(want ...string) {
	n.t.Helper()
	n.mu.Lock()
	defer n.mu.Unlock()
	if got := strings.Join(n.acted, ", "); got != strings.Join(want, ", ") {
		n.t.Errorf("actions: %s; want %s\n%s", got, strings.Join(want, ", "), n.log)
	}
}

// state returns the state of the rules in a pod's namespace.
func (n *node) state(p string) CheckResult {
	n.t.Helper()
	pod, _ := n.api.Pod("shop", p)
	s, err := n.Find(&pod, nil, "")
	if err != nil {
		n.t.Fatal(err)
	}
	defer s.Close()
	return n.repairer().inspect(n.t.Context(), &pod, s, true)
}

// wantEvents fails the test unless the events begin with these texts.
func (n *node) wantEvents(want ...string) {
	n.t.Helper()
	n.mu.Lock()
	defer n.mu.Unlock()
	same := func(event, begins string) bool { return strings.HasPrefix(event, begins) }
	if !slices.EqualFunc(n.events, want, same) {
		n.t.Errorf("events:\n%s\nwant:\n%s", strings.Join(n.events, "\n"), strings.Join(want, "\n"))
	}
}

func TestPodEventReportsProblemAndRemedyOnce(t *testing.T) {
	n := newNode(t, Repair)
	ns := n.start("web", "u1")
	r := n.repairer()
	r.Sweep(t.Context())
	damage(t, ns)
	r.Sweep(t.Context())
	r.Sweep(t.Context())
	p := must(n.Find(n.pods()[0], nil, ""))
	defer p.Close()
	if err := r.do(t.Context(), n.pods()[0], p); err != nil {
		t.Fatal(err)
	}
	r.Sweep(t.Context())
	bad := *n.pods()[0]
	bad.Metadata.Annotations = map[string]string{"sidecar.istio.io/status": "{}", "traffic.sidecar.istio.io/excludeOutboundPorts": "70000"}
	n.api.Put(bad)
	r.Sweep(t.Context())
	r.Sweep(t.Context())
	n.wantEvents("RedirectionRepaired warning=false", "RedirectionDrifted warning=true: the pod's traffic is not redirected correctly; check which program changes rules in the pod, then delete the pod: ",
		"RedirectionIntact warning=false", "RedirectionRefused warning=true: the pod's mesh settings are invalid: annotation traffic.sidecar.istio.io/excludeOutboundPorts")
}

func TestPodEventReportsTheActionOfEachMode(t *testing.T) {
	for mode, want := range map[Mode][]string{
		Watch:  {"RedirectionMissing warning=true: the pod's traffic bypasses its sidecar; delete the pod"},
		Label:  {"RedirectionPodLabelled warning=true", "RedirectionMissing warning=true"},
		Delete: {"RedirectionPodDeleted warning=true", "RedirectionMissing warning=true"},
	} {
		n := newNode(t, mode)
		n.start("web", "u1")
		n.repairer().Sweep(t.Context())
		n.wantEvents(want...)
	}
}

func TestPodWithoutRulesIsRepairedInPlace(t *testing.T) {
	n := newNode(t, Repair)
	n.start("web", "u1")
	if e := n.state("web"); e.State != Missing || len(e.Differences) == 0 {
		t.Fatalf("%+v", e)
	}
	r := n.repairer()
	r.Sweep(t.Context())
	n.wantActs("repair success")
	n.wantEvents("RedirectionRepaired warning=false: the pod's traffic bypassed its sidecar, because")
	if e := n.state("web"); e.State != Intact {
		t.Errorf("%+v", e)
	}
	if n.captured != 1 || n.drifted != 0 {
		t.Errorf("%d captured, %d drifted", n.captured, n.drifted)
	}
	r.Sweep(t.Context())
	n.wantActs("repair success")
}

func TestSandboxIsRepairedOnlyOnceAcrossRestarts(t *testing.T) {
	n := newNode(t, Repair)
	ns := n.start("web", "u1")
	n.repairer().Sweep(t.Context())
	flush(t, ns)
	n.repairer().Sweep(t.Context()) // a restarted agent, which reads the history of the first
	if n.repairs != 1 || n.drifted != 1 {
		t.Errorf("%d repairs, %d drifted: %v", n.repairs, n.drifted, n.acted)
	}
	if !strings.Contains(n.log.String(), "state=missing") {
		t.Errorf("the log does not report the pod:\n%s", n.log)
	}
}

func TestNewPodOfTheSameNameIsRepaired(t *testing.T) {
	n := newNode(t, Repair)
	n.start("web", "u1")
	r := n.repairer()
	r.Sweep(t.Context())
	n.start("web", "u2")
	r.Sweep(t.Context())
	n.wantActs("repair success", "repair success")
	n.namespaces["u2"] = n.start("other", "u3") // another sandbox of the same pod: the same UID, another namespace
	delete(n.namespaces, "u3")
	r.Sweep(t.Context())
	n.wantActs("repair success", "repair success", "repair success")
}

// flush removes all rules, as an administrator might.
func flush(t *testing.T, ns *testns.Namespace) {
	t.Helper()
	conn, err := nftables.New(nftables.WithNetNSFd(int(ns.Handle)))
	if err != nil {
		t.Fatal(err)
	}
	conn.FlushRuleset()
	if err := conn.Flush(); err != nil {
		t.Fatal(err)
	}
}

// damage removes one rule.
func damage(t *testing.T, ns *testns.Namespace) {
	t.Helper()
	conn, err := nftables.New(nftables.WithNetNSFd(int(ns.Handle)))
	if err != nil {
		t.Fatal(err)
	}
	chains, err := conn.ListChains()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range chains {
		rules, err := conn.GetRules(c.Table, c)
		if err != nil || len(rules) == 0 {
			continue
		}
		if err := errors.Join(conn.DelRule(rules[len(rules)-1]), conn.Flush()); err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Fatal("the namespace has no rule to remove")
}

func TestDriftIsOnlyReportedByDefault(t *testing.T) {
	n := newNode(t, Repair)
	ns := n.start("web", "u1")
	if err := (&Repairer{config: n.config}).do(t.Context(), n.pods()[0], must(n.Find(n.pods()[0], nil, ""))); err != nil {
		t.Fatal(err)
	}
	n.repairs = 0
	r := n.repairer()
	r.Sweep(t.Context())
	damage(t, ns)
	r.Sweep(t.Context())
	r.Sweep(t.Context())
	if n.drifted != 1 || n.repairs != 0 || fmt.Sprint(n.checked) != "[intact drifted drifted]" {
		t.Errorf("%d drifted, %d repairs, checks %v", n.drifted, n.repairs, n.checked)
	}
	if strings.Count(n.log.String(), "state=drifted") != 1 {
		t.Errorf("the pod is not reported exactly once:\n%s", n.log)
	}
	n.config.Drifted = true
	n.repairer().Sweep(t.Context())
	n.wantActs("repair success")
	if n.drifted != 0 {
		t.Error("the pod is still counted as drifted")
	}
}

func must(s *sandbox.Sandbox, err error) *sandbox.Sandbox {
	if err != nil {
		panic(err)
	}
	return s
}

func TestPodIsDeletedOnlyIfItIsStillTheSame(t *testing.T) {
	n := newNode(t, Delete)
	n.start("web", "u1")
	stale := n.pods()[0]
	n.start("web", "u2") // the pod was replaced by another one of the same name
	n.config.Pods = func() []*agentapi.Pod { return []*agentapi.Pod{stale} }
	r := n.repairer()
	r.Sweep(t.Context())
	n.wantActs("delete skip")
	if _, known := n.api.Pod("shop", "web"); !known {
		t.Fatal("another pod was deleted")
	}
	n.config.Pods = n.pods
	n.repairer().Sweep(t.Context())
	n.wantActs("delete skip", "delete success")
	if _, known := n.api.Pod("shop", "web"); known || n.repairs != 0 {
		t.Error("the pod was not deleted, or it was repaired")
	}
}

func TestPodIsLabelledOnce(t *testing.T) {
	n := newNode(t, Label)
	n.start("web", "u1")
	r := n.repairer()
	r.Sweep(t.Context())
	r.Sweep(t.Context())
	p, _ := n.api.Pod("shop", "web")
	if p.Metadata.Labels["cni.istio.io/uninitialized"] != "true" || n.repairs != 0 {
		t.Errorf("%+v", p.Metadata.Labels)
	}
	if asked := n.api.Requests("PATCH", "/api/v1/namespaces/shop/pods/web"); asked != 1 {
		t.Errorf("%d requests", asked)
	}
}

func TestFailedActionIsRetriedALimitedNumberOfTimes(t *testing.T) {
	n := newNode(t, Label)
	n.start("web", "u1")
	r := n.repairer()
	stale := n.pods()
	n.config.Pods = func() []*agentapi.Pod { return stale }
	r.config.Pods = n.config.Pods
	n.api.Break(500)
	for range 2 * maxTries {
		r.Sweep(t.Context())
	}
	if len(n.acted) != maxTries || n.acted[0] != "label fail" {
		t.Errorf("%v", n.acted)
	}
}

func TestPodsRedirectedByOtherProgramsAreNotChanged(t *testing.T) {
	for name, redirect := range map[string][]string{
		"Istio by iptables-nft":    {"iptables-nft", "-w", "-t", "nat", "-N", "ISTIO_OUTPUT"},
		"Istio by iptables-legacy": {"iptables-legacy", "-w", "-t", "nat", "-N", "ISTIO_OUTPUT"},
		"Istio by nftables":        {"nft", "add", "table", "inet", "istio-proxy-nat", ";", "add", "chain", "inet", "istio-proxy-nat", "prerouting"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := exec.LookPath(redirect[0]); err != nil {
				t.Skip(redirect[0], "is not installed")
			}
			n := newNode(t, Repair)
			ns := n.start("web", "u1")
			_, done := ns.Start(t, exec.Command(redirect[0], redirect[1:]...))
			<-done
			n.repairer().Sweep(t.Context())
			n.wantActs()
			if fmt.Sprint(n.checked) != "[foreign]" {
				t.Errorf("%v\n%s", n.checked, n.log)
			}
		})
	}
}

func TestEmptyLegacyTablesAreNotForeignRedirection(t *testing.T) {
	if _, err := exec.LookPath("iptables-legacy"); err != nil {
		t.Skip("iptables is not installed")
	}
	n := newNode(t, Repair)
	ns := n.start("web", "u1")
	_, done := ns.Start(t, exec.Command("iptables-legacy", "-w", "-t", "nat", "-L", "-n"))
	<-done
	n.repairer().Sweep(t.Context())
	n.wantActs("repair success")
}

func TestRepairUsesTheConfiguredBackend(t *testing.T) {
	for _, choice := range []backends.Choice{backends.IPTablesNFT, backends.IPTablesLegacy} {
		if _, err := exec.LookPath("iptables-" + string(choice)); err != nil {
			t.Skip("iptables is not installed")
		}
		n := newNode(t, Repair)
		n.choice = choice
		n.start("web", "u1")
		r := n.repairer()
		r.Sweep(t.Context())
		r.Sweep(t.Context())
		n.wantActs("repair success")
		if fmt.Sprint(n.checked) != "[intact intact]" {
			t.Errorf("%s: %v\n%s", choice, n.checked, n.log)
		}
	}
}

func TestPodsWithoutRedirectionAreNotChecked(t *testing.T) {
	n := newNode(t, Repair)
	change := map[string]func(*agentapi.Pod){
		"over":         func(p *agentapi.Pod) { p.Status.Phase = "Succeeded" },
		"being ended":  func(p *agentapi.Pod) { now := time.Now(); p.Metadata.DeletionTimestamp = &now },
		"host network": func(p *agentapi.Pod) { p.Spec.HostNetwork = true },
		"no sidecar":   func(p *agentapi.Pod) { p.Spec.Containers = p.Spec.Containers[:1] },
		"not begun":    func(p *agentapi.Pod) { p.Status.InitContainerStatuses = nil },
	}
	for name, f := range change {
		n.start("web", "u1")
		p, _ := n.api.Pod("shop", "web")
		f(&p)
		n.api.Put(p)
		n.repairer().Sweep(t.Context())
		if len(n.checked) > 0 {
			t.Fatalf("%s: looked at", name)
		}
	}
}

func TestChangedPodIsCheckedSoon(t *testing.T) {
	n := newNode(t, Repair)
	n.config.Every, n.config.Pause = time.Hour, time.Millisecond
	r := n.repairer()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = r.Run(ctx) }()
	defer func() { cancel(); <-done }()
	n.start("web", "u1")
	r.Changed(kube.Event{Type: kube.Modified, Pod: n.pods()[0]})
	testenv.Eventually(t, "the repair", func() error {
		n.mu.Lock()
		defer n.mu.Unlock()
		if len(n.acted) == 0 {
			return errors.New("not yet")
		}
		return nil
	})
}

func TestBadModesAreRefused(t *testing.T) {
	for _, c := range []Config{{Mode: "maybe"}, {Mode: Label}} {
		if _, err := New(c); err == nil {
			t.Errorf("%+v", c)
		}
	}
}
