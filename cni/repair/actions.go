package repair

import (
	"context"
	"strings"

	"github.com/pilotfish-mesh/pilotfish/cni/agentapi"
	"github.com/pilotfish-mesh/pilotfish/cni/kube"
	"github.com/pilotfish-mesh/pilotfish/cni/sandbox"
)

func (r *Repairer) shouldAct(state State) bool {
	return r.config.Mode != Watch && (state == Missing || state == Drifted && r.config.Drifted)
}

// keyOf returns a key that identifies a sandbox. A pod may have several sandboxes in sequence, and a new pod of the
// same name has another UID.
func keyOf(p *agentapi.Pod, s *sandbox.Sandbox) string {
	lasting, err := s.UniqueName()
	if err != nil {
		lasting = s.ID.String()
	}
	return p.Metadata.UID + "/" + lasting
}

func uidOf(key string) string {
	uid, _, _ := strings.Cut(key, "/")
	return uid
}

// act repairs a sandbox unless that was done before, and reports whether it did. It records the repair first. If the
// process is killed in between, the repair is omitted rather than done twice.
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
		r.config.Logger.Warn("the repair of a pod cannot be recorded", "error", err)
	}
	err := r.do(ctx, p, s)
	switch {
	case err == nil:
		r.config.Logger.Warn("a pod started without redirection", "pod", name(p), "uid", p.Metadata.UID, "done", r.config.Mode)
		if r.config.Mode != Repair {
			r.acted("success")
			r.event(p, true, reasonsDone[r.config.Mode], done[r.config.Mode])
		}
		return true
	case kube.IsConflict(err) || kube.IsNotFound(err): // the pod was changed or replaced
		r.history.drop(key)
		r.acted("skip")
	default: // nothing was changed
		r.history.drop(key)
		r.acted("fail")
		r.config.Logger.Error("a pod without redirection could not be repaired", "pod", name(p), "mode", r.config.Mode,
			"try", r.tries[key], "of", maxTries, "error", err)
		r.event(p, true, reasonFailed, "its traffic bypasses its proxy, and the repair failed; delete the pod, so that it restarts: "+err.Error())
	}
	return false
}

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

// reportRepair reports the result of a repair, based on the rules and test packets afterwards.
func (r *Repairer) reportRepair(p *agentapi.Pod, e CheckResult) {
	if e.State == Intact {
		r.acted("success")
		r.event(p, false, reasonRepaired, "its traffic bypassed its proxy, because redirection was missing or incorrect; now it is redirected, as test packets have shown")
		return
	}
	r.acted("fail")
	r.event(p, true, reasonFailed, "the repair had no effect: delete the pod, so that it restarts: "+summarize(e.Differences))
	r.config.Logger.Error("the repair of a pod had no effect: delete it, so that it restarts", "pod", name(p), "evidence", summarize(e.Differences))
}

func (r *Repairer) acted(result string) {
	if r.config.Callbacks.Acted != nil {
		r.config.Callbacks.Acted(r.config.Mode, result)
	}
}
