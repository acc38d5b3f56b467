package repair

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pilotfish-mesh/pilotfish/cni/agentapi"
	"github.com/pilotfish-mesh/pilotfish/cni/kube"
	"github.com/pilotfish-mesh/pilotfish/cni/sandbox"
	"github.com/pilotfish-mesh/pilotfish/internal/backoff"
)

// maxTries limits how often the repairer tries an action on one sandbox if the action fails.
const maxTries = 5

// maxUnseen is the number of consecutive checks without a sandbox after which the repairer reports a running pod.
// After fewer checks, the pod may just have terminated.
const maxUnseen = 3

// Repairer checks and repairs the pods of the node.
type Repairer struct {
	config Config
	wake   chan struct{}

	mu    sync.Mutex
	dirty map[string]bool   // namespace/name of pods that changed since the last check
	hints map[string]string // paths of network namespaces that the plugin reported, by the pod's UID

	// Only Run uses these fields:
	history      *history
	tries        map[string]int    // attempts, by keyOf
	states       map[string]State  // of the pods that should be captured, by UID
	lastReported map[string]string // state and differences that were logged last, by UID
	unseen       map[string]int    // consecutive checks that did not find the sandbox, by UID
}

// New returns a repairer with the history from its file, or an error if the configuration is invalid.
func New(c Config) (*Repairer, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	m, err := openHistory(c.HistoryFile)
	if err != nil {
		c.Logger.Warn("cannot read the history of repaired pods; pods may be repaired again", "error", err)
	}
	return &Repairer{
		config: c, wake: make(chan struct{}, 1), history: m,
		dirty: map[string]bool{}, hints: map[string]string{},
		tries: map[string]int{}, states: map[string]State{}, lastReported: map[string]string{},
		unseen: map[string]int{},
	}, nil
}

// Changed schedules a check of a changed pod. It does not block.
func (r *Repairer) Changed(e kube.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e.Type == kube.Deleted {
		delete(r.hints, e.Pod.Metadata.UID)
		return
	}
	r.dirty[e.Pod.Metadata.Namespace+"/"+e.Pod.Metadata.Name] = true
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// HandleResult stores the path of a pod's network namespace from the result of ADD. It does not block.
func (r *Repairer) HandleResult(result agentapi.Result) {
	if result.Command != "ADD" || result.UID == "" || result.NetNS == "" {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hints[result.UID] = result.NetNS
}

// Run checks all pods periodically, and changed pods after a short delay, until the context ends.
func (r *Repairer) Run(ctx context.Context) error {
	every := time.NewTicker(r.config.Every)
	defer every.Stop()
	r.Sweep(ctx)
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-every.C:
			r.Sweep(ctx)
		case <-r.wake:
			r.lookAt(ctx, r.takeDirty())
			// Pods that change during the pause are checked together, with a single scan of the processes.
			if !backoff.Sleep(ctx, r.config.Pause) {
				return ctx.Err()
			}
		}
	}
}

func (r *Repairer) takeDirty() map[string]bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	dirty := r.dirty
	r.dirty = map[string]bool{}
	return dirty
}

// Sweep checks all pods once and acts on the results.
func (r *Repairer) Sweep(ctx context.Context) {
	r.takeDirty()
	r.lookAt(ctx, nil)
}

// lookAt checks the pods whose names are in selected, or all pods if selected is nil.
func (r *Repairer) lookAt(ctx context.Context, selected map[string]bool) {
	pods := r.due()
	if len(pods) == 0 || selected != nil && !slices.ContainsFunc(pods, func(p *agentapi.Pod) bool { return selected[name(p)] }) {
		r.removeStale(pods)
		return
	}
	processes, err := r.config.Scan()
	if err != nil {
		r.config.Logger.Error("cannot check the redirection of running pods", "error", err)
		for _, p := range pods {
			if selected == nil || selected[name(p)] {
				r.recordState(p, CheckResult{State: Unknown, Differences: []string{err.Error()}})
			}
		}
		r.removeStale(pods)
		return
	}
	for _, p := range pods {
		if ctx.Err() != nil {
			return
		}
		if selected == nil || selected[name(p)] {
			r.look(ctx, p, processes)
		}
	}
	r.removeStale(pods)
}

// due returns the pods that must be redirected and in which a container has started.
func (r *Repairer) due() []*agentapi.Pod {
	var due []*agentapi.Pod
	for _, p := range r.config.Pods() {
		if !p.IsTerminating() && r.config.Settings.SkipPod(p) == nil && hasStarted(p) {
			due = append(due, p)
		}
	}
	return due
}

// hasStarted reports whether a container of the pod was created. Before that, the plugin may not have installed the
// rules yet, so a check would report a false problem.
func hasStarted(p *agentapi.Pod) bool {
	for _, list := range [][]agentapi.ContainerStatus{p.Status.InitContainerStatuses, p.Status.ContainerStatuses} {
		if slices.ContainsFunc(list, func(c agentapi.ContainerStatus) bool { return c.ContainerID != "" }) {
			return true
		}
	}
	return false
}

func name(p *agentapi.Pod) string { return p.Metadata.Namespace + "/" + p.Metadata.Name }

// lookTimeout is the timeout of the check of one pod. It is necessary because the node's iptables or a kernel request
// may hang.
const lookTimeout = time.Minute

// look checks one pod and acts on the result.
func (r *Repairer) look(ctx context.Context, p *agentapi.Pod, processes SandboxFinder) {
	ctx, cancel := context.WithTimeoutCause(ctx, lookTimeout, fmt.Errorf("checking the pod timed out after %v", lookTimeout))
	defer cancel()
	s, err := processes.Find(p, uids(p), r.hint(p))
	if err != nil {
		if r.unseen[p.Metadata.UID]++; errors.Is(err, sandbox.ErrNone) && r.states[p.Metadata.UID] == "" &&
			(p.Status.Phase != "Running" || r.unseen[p.Metadata.UID] < maxUnseen) {
			return // the pod's processes have not started yet, or have terminated
		}
		r.recordState(p, CheckResult{State: Unknown, Differences: []string{err.Error()}})
		return
	}
	defer s.Close()
	delete(r.unseen, p.Metadata.UID)
	evidence := r.inspect(ctx, p, s, false)
	if r.shouldAct(evidence.State) && r.act(ctx, p, s) && r.config.Mode == Repair {
		evidence = r.inspect(ctx, p, s, true)
		r.reportRepair(p, evidence)
	}
	r.recordState(p, evidence)
}

// uids returns the UIDs that the names of the pod's cgroups may contain: the pod's and, for a mirror pod, the static
// pod's.
func uids(p *agentapi.Pod) []string {
	all := []string{p.Metadata.UID}
	if static := p.Metadata.Annotations["kubernetes.io/config.mirror"]; static != "" {
		all = append(all, static)
	}
	return all
}

// hint returns the path of the pod's network namespace that the plugin reported, or "" if it reported none.
func (r *Repairer) hint(p *agentapi.Pod) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, uid := range uids(p) {
		if hint := r.hints[uid]; hint != "" {
			return hint
		}
	}
	return ""
}

// inspect checks the redirection in a pod's sandbox. With prove it also sends test packets.
func (r *Repairer) inspect(ctx context.Context, p *agentapi.Pod, s *sandbox.Sandbox, prove bool) CheckResult {
	addresses, err := s.Addresses()
	if err != nil {
		return CheckResult{State: Unknown, Differences: []string{err.Error()}}
	}
	options, err := r.config.Settings.Options(p, addresses)
	if err != nil {
		return CheckResult{State: Unknown, Differences: []string{refused + err.Error()}}
	}
	evidence, err := r.config.Redirection.Check(ctx, s, options, prove)
	if err != nil {
		return CheckResult{State: Unknown, Differences: []string{err.Error()}}
	}
	return evidence
}

// recordState stores the result of a pod's check. It logs the result and creates an event if the result has changed.
func (r *Repairer) recordState(p *agentapi.Pod, e CheckResult) {
	r.states[p.Metadata.UID] = e.State
	if r.config.Callbacks.Checked != nil {
		r.config.Callbacks.Checked(e.State)
	}
	text := fmt.Sprint(e.State, e.Differences)
	if r.lastReported[p.Metadata.UID] == text {
		return
	}
	before := r.lastReported[p.Metadata.UID]
	r.lastReported[p.Metadata.UID] = text
	switch e.State {
	case Intact:
		if before != "" {
			r.config.Logger.Info("a pod's traffic is redirected correctly again", "pod", name(p))
			r.event(p, false, reasonIntact, "the pod's traffic is redirected correctly again")
		}
	case Foreign:
		r.config.Logger.Info("another program redirects the traffic of a pod; the pod is not changed", "pod", name(p), "evidence", summarize(e.Differences))
	case Unknown:
		if strings.HasPrefix(summarize(e.Differences), refused) {
			r.event(p, true, reasonRefused, summarize(e.Differences))
		}
		r.config.Logger.Warn("cannot check the redirection of a pod", "pod", name(p), "reason", summarize(e.Differences))
	default:
		r.event(p, true, reasons[e.State], messages[e.State]+summarize(e.Differences))
		r.config.Logger.Warn("the redirection of a pod is incorrect", "pod", name(p), "state", e.State, "differences", summarize(e.Differences),
			"remedy", "check which program changes the rules: run pilotfish-agent iptables verify in the pod; then delete the pod, so that its controller creates another one")
	}
}

// summarize joins the differences for a log line or event, at most eight.
func summarize(differences []string) string {
	const maxDifferences = 8
	if more := len(differences) - maxDifferences; more > 0 {
		return strings.Join(differences[:maxDifferences], "; ") + fmt.Sprintf("; and %d more", more)
	}
	return strings.Join(differences, "; ")
}

// removeStale removes the data of all pods except pods, and reports the numbers of checked and drifted pods.
func (r *Repairer) removeStale(pods []*agentapi.Pod) {
	live := map[string]bool{}
	for _, p := range pods {
		live[p.Metadata.UID] = true
	}
	gone := func(uid string) bool { return !live[uid] }
	maps.DeleteFunc(r.states, func(uid string, _ State) bool { return gone(uid) })
	maps.DeleteFunc(r.unseen, func(uid string, _ int) bool { return gone(uid) })
	maps.DeleteFunc(r.lastReported, func(uid, _ string) bool { return gone(uid) })
	maps.DeleteFunc(r.tries, func(key string, _ int) bool { return gone(uidOf(key)) })
	if len(pods) > 0 { // an empty list may mean that the node's pods have not been listed yet
		r.history.retain(live)
	}
	drifted := 0
	for _, state := range r.states {
		if state == Drifted || state == Missing {
			drifted++
		}
	}
	if r.config.Callbacks.Counted != nil {
		r.config.Callbacks.Counted(len(r.states), drifted)
	}
}
