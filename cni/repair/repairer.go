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
)

// mostTries is how often an action that failed, and so changed nothing, is tried again on one sandbox.
const mostTries = 5

// mostUnseen is how often no sandbox of a running pod is found before that is told: it may have just ended.
const mostUnseen = 3

// Repairer looks at the pods of the node.
type Repairer struct {
	config Config
	wake   chan struct{}

	mu    sync.Mutex
	dirty map[string]bool   // namespace/name of pods that changed since the last look
	hints map[string]string // network namespaces that runtimes told the plugin, by UID

	// Of Run alone:
	memory   *memory
	tries    map[string]int   // by sandbox
	standing map[string]State // by UID, of the pods that should be captured
	told     map[string]string
	unseen   map[string]int // by UID: how often no sandbox of it was found
}

// New checks the configuration and remembers what was acted on before.
func New(c Config) (*Repairer, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	m, err := openMemory(c.Memory)
	if err != nil {
		c.Logger.Warn("which pods were repaired before is not known", "error", err)
	}
	return &Repairer{
		config: c, wake: make(chan struct{}, 1), memory: m,
		dirty: map[string]bool{}, hints: map[string]string{},
		tries: map[string]int{}, standing: map[string]State{}, told: map[string]string{},
		unseen: map[string]int{},
	}, nil
}

// Changed has a pod looked at soon. It does not block.
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

// Told remembers where the plugin was told that a pod's network is. It does not block.
func (r *Repairer) Told(result agentapi.Result) {
	if result.Command != "ADD" || result.UID == "" || result.NetNS == "" {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hints[result.UID] = result.NetNS
}

// Run looks at all pods from time to time, and at those that change soon after, until the context ends.
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
			select { // processes are scanned once for all that change meanwhile
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(r.config.Pause):
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

// Sweep looks at all pods once.
func (r *Repairer) Sweep(ctx context.Context) {
	r.takeDirty()
	r.lookAt(ctx, nil)
}

// lookAt looks at some pods, or all for nil.
func (r *Repairer) lookAt(ctx context.Context, only map[string]bool) {
	pods := r.due()
	if len(pods) == 0 || only != nil && !slices.ContainsFunc(pods, func(p *agentapi.Pod) bool { return only[name(p)] }) {
		r.forget(pods)
		return
	}
	processes, err := r.config.Scan()
	if err != nil {
		r.config.Logger.Error("live pods cannot be checked", "error", err)
		for _, p := range pods {
			if only == nil || only[name(p)] {
				r.note(p, Evidence{State: Unknown, Differences: []string{err.Error()}})
			}
		}
		r.forget(pods)
		return
	}
	for _, p := range pods {
		if ctx.Err() != nil {
			return
		}
		if only == nil || only[name(p)] {
			r.look(ctx, p, processes)
		}
	}
	r.forget(pods)
}

// due are the pods that have to be captured and may have a sandbox.
func (r *Repairer) due() []*agentapi.Pod {
	var due []*agentapi.Pod
	for _, p := range r.config.Pods() {
		if !p.Over() && r.config.Settings.SkipPod(p) == nil && began(p) {
			due = append(due, p)
		}
	}
	return due
}

// began says whether a container of the pod was made, so that its sandbox was: while the plugin is still at work nothing
// in there is evidence.
func began(p *agentapi.Pod) bool {
	for _, list := range [][]agentapi.ContainerStatus{p.Status.InitContainerStatuses, p.Status.ContainerStatuses} {
		if slices.ContainsFunc(list, func(c agentapi.ContainerStatus) bool { return c.ContainerID != "" }) {
			return true
		}
	}
	return false
}

func name(p *agentapi.Pod) string { return p.Metadata.Namespace + "/" + p.Metadata.Name }

// lookTime bounds what one pod takes of the others' time: a node's iptables, or what the kernel is asked, may hang.
const lookTime = time.Minute

// look finds out how one pod is, and deals with what it finds.
func (r *Repairer) look(ctx context.Context, p *agentapi.Pod, processes Processes) {
	ctx, cancel := context.WithTimeoutCause(ctx, lookTime, fmt.Errorf("looking at the pod took longer than %v", lookTime))
	defer cancel()
	s, err := processes.Find(p, uids(p), r.hint(p))
	if err != nil {
		if r.unseen[p.Metadata.UID]++; errors.Is(err, sandbox.ErrNone) && r.standing[p.Metadata.UID] == "" &&
			(p.Status.Phase != "Running" || r.unseen[p.Metadata.UID] < mostUnseen) {
			return // it has no process yet, or no more
		}
		r.note(p, Evidence{State: Unknown, Differences: []string{err.Error()}})
		return
	}
	defer s.Close()
	delete(r.unseen, p.Metadata.UID)
	evidence := r.inspect(ctx, p, s, false)
	if r.shouldAct(evidence.State) && r.act(ctx, p, s) && r.config.Mode == Mend {
		evidence = r.inspect(ctx, p, s, true)
		r.mended(p, evidence)
	}
	r.note(p, evidence)
}

// uids are those by which the pod's control groups may be named.
func uids(p *agentapi.Pod) []string {
	all := []string{p.Metadata.UID}
	if static := p.Metadata.Annotations["kubernetes.io/config.mirror"]; static != "" {
		all = append(all, static)
	}
	return all
}

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

func (r *Repairer) inspect(ctx context.Context, p *agentapi.Pod, s *sandbox.Sandbox, prove bool) Evidence {
	addresses, err := s.Addresses()
	if err != nil {
		return Evidence{State: Unknown, Differences: []string{err.Error()}}
	}
	options, err := r.config.Settings.Options(p, addresses)
	if err != nil {
		return Evidence{State: Unknown, Differences: []string{refused + err.Error()}}
	}
	evidence, err := r.config.Redirection.Look(ctx, s, options, prove)
	if err != nil {
		return Evidence{State: Unknown, Differences: []string{err.Error()}}
	}
	return evidence
}

// note keeps how a pod is, and tells it when that is news.
func (r *Repairer) note(p *agentapi.Pod, e Evidence) {
	r.standing[p.Metadata.UID] = e.State
	if r.config.Tell.Checked != nil {
		r.config.Tell.Checked(e.State)
	}
	text := fmt.Sprint(e.State, e.Differences)
	if r.told[p.Metadata.UID] == text {
		return
	}
	before := r.told[p.Metadata.UID]
	r.told[p.Metadata.UID] = text
	switch e.State {
	case Intact:
		if before != "" {
			r.config.Logger.Info("the redirection of a pod is as it should be again", "pod", name(p))
			r.event(p, false, reasonIntact, "its traffic is redirected as it should be again")
		}
	case Foreign:
		r.config.Logger.Info("the traffic of a pod is redirected by somebody else, and left to them", "pod", name(p), "evidence", brief(e.Differences))
	case Unknown:
		if strings.HasPrefix(brief(e.Differences), refused) {
			r.event(p, true, reasonRefused, brief(e.Differences))
		}
		r.config.Logger.Warn("the redirection of a pod cannot be checked", "pod", name(p), "reason", brief(e.Differences))
	default:
		r.event(p, true, reasons[e.State], says[e.State]+brief(e.Differences))
		r.config.Logger.Warn("the redirection of a pod is not what it should be", "pod", name(p), "state", e.State, "differences", brief(e.Differences),
			"remedy", "start the pod anew; see who changes rules in it: pilotfish-agent iptables verify inside it tells what its traffic does")
	}
}

// brief keeps a log line short.
func brief(differences []string) string {
	const most = 8
	if more := len(differences) - most; more > 0 {
		return strings.Join(differences[:most], "; ") + fmt.Sprintf("; and %d more", more)
	}
	return strings.Join(differences, "; ")
}

// forget drops what concerns pods that are gone, and tells how the others stand.
func (r *Repairer) forget(pods []*agentapi.Pod) {
	live := map[string]bool{}
	for _, p := range pods {
		live[p.Metadata.UID] = true
	}
	gone := func(uid string) bool { return !live[uid] }
	maps.DeleteFunc(r.standing, func(uid string, _ State) bool { return gone(uid) })
	maps.DeleteFunc(r.unseen, func(uid string, _ int) bool { return gone(uid) })
	maps.DeleteFunc(r.told, func(uid, _ string) bool { return gone(uid) })
	maps.DeleteFunc(r.tries, func(key string, _ int) bool { return gone(uidOf(key)) })
	if len(pods) > 0 { // none may mean that they are not known yet
		r.memory.keep(live)
	}
	drifted := 0
	for _, state := range r.standing {
		if state == Drifted || state == Missing {
			drifted++
		}
	}
	if r.config.Tell.Standing != nil {
		r.config.Tell.Standing(len(r.standing), drifted)
	}
}
