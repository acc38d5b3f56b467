package repair

import (
	"context"
	"strings"

	"github.com/pilotfish-mesh/pilotfish/cni/agentapi"
	"github.com/pilotfish-mesh/pilotfish/cni/kube"
	"github.com/pilotfish-mesh/pilotfish/cni/sandbox"
)

// shouldAct reports whether the configured mode acts on a pod in this state.
func (r *Repairer) shouldAct(state State) bool {
	return r.config.Mode != Watch && (state == Missing || state == Drifted && r.config.Drifted)
}

// keyOf returns the key of a sandbox in the history. It contains the pod's UID, because a later pod may have the same
// name. It also contains the sandbox's name, because the runtime may create another sandbox for the same pod.
func keyOf(p *agentapi.Pod, s *sandbox.Sandbox) string {
	unique, err := s.UniqueName()
	if err != nil {
		unique = s.ID.String()
	}
	return p.Metadata.UID + "/" + unique
}

// uidOf returns the pod's UID in a key that keyOf returned.
func uidOf(key string) string {
	uid, _, _ := strings.Cut(key, "/")
	return uid
}

// act performs the mode's action on a pod and reports whether it succeeded. It acts only once per sandbox. It records
// the action before it performs it. If the process is killed in between, the action is not performed, but it is never
// performed twice.
func (r *Repairer) act(ctx context.Context, p *agentapi.Pod, s *sandbox.Sandbox) bool {
	key := keyOf(p, s)
	if r.history.has(key) {
		r.acted("skip")
		return false
	}
	if r.tries[key]++; r.tries[key] > maxTries {
		return false
	}
	if err := r.history.add(key); err != nil {
		r.config.Logger.Warn("cannot record the repair of a pod; after a restart, the agent may repair the pod again", "pod", name(p), "error", err)
	}
	err := r.do(ctx, p, s)
	switch {
	case err == nil:
		r.config.Logger.Warn("the redirection of a pod was missing or incorrect; the repair action was performed", "pod", name(p), "uid", p.Metadata.UID, "action", r.config.Mode)
		if r.config.Mode != Repair {
			r.acted("success")
			r.event(p, true, reasonsDone[r.config.Mode], done[r.config.Mode])
		}
		return true
	case kube.IsConflict(err) || kube.IsNotFound(err): // the pod was changed or replaced
		r.history.drop(key)
		r.acted("skip")
	default: // the action failed, so the next check tries again
		r.history.drop(key)
		r.acted("fail")
		r.config.Logger.Error("repairing a pod without redirection failed", "pod", name(p), "action", r.config.Mode,
			"try", r.tries[key], "of", maxTries, "error", err)
		r.event(p, true, reasonFailed, "the pod's traffic bypasses its sidecar, and the repair failed; delete the pod, so that its controller creates another one: "+err.Error())
	}
	return false
}

// do performs the mode's action on a pod.
func (r *Repairer) do(ctx context.Context, p *agentapi.Pod, s *sandbox.Sandbox) error {
	switch r.config.Mode {
	case Delete:
		return r.config.API.Delete(ctx, p)
	case Label:
		return r.config.API.Label(ctx, p, r.config.LabelKey, r.config.LabelValue)
	}
	addresses, err := s.Addresses()
	if err != nil {
		return err
	}
	options, err := r.config.Settings.Options(p, addresses)
	if err != nil {
		return err
	}
	return r.config.Redirection.Repair(ctx, s, options)
}

// reportRepair reports whether a repair was effective. e is the result of a check with test packets after the repair.
func (r *Repairer) reportRepair(p *agentapi.Pod, e CheckResult) {
	if e.State == Intact {
		r.acted("success")
		r.event(p, false, reasonRepaired, "the pod's traffic bypassed its sidecar, because redirection was missing or incorrect; it is redirected now, which test packets have verified")
		return
	}
	r.acted("fail")
	r.event(p, true, reasonFailed, "the repair of the redirection had no effect; delete the pod, so that its controller creates another one: "+summarize(e.Differences))
	r.config.Logger.Error("the repair of a pod's redirection had no effect; delete the pod, so that its controller creates another one", "pod", name(p), "evidence", summarize(e.Differences))
}

func (r *Repairer) acted(result string) {
	if r.config.Callbacks.Acted != nil {
		r.config.Callbacks.Acted(r.config.Mode, result)
	}
}
