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

// keyOf names a sandbox: a pod has another one after its first has died, and a new pod of the same name another UID.
func keyOf(p *agentapi.Pod, s *sandbox.Sandbox) string {
	lasting, err := s.Lasting()
	if err != nil {
		lasting = s.ID.String()
	}
	return p.Metadata.UID + "/" + lasting
}

func uidOf(key string) string {
	uid, _, _ := strings.Cut(key, "/")
	return uid
}

// act deals with a sandbox, if that was not done before, and says whether it did. It is noted before it is done: whoever
// is killed in between has rather not acted than acts twice.
func (r *Repairer) act(ctx context.Context, p *agentapi.Pod, s *sandbox.Sandbox) bool {
	key := keyOf(p, s)
	if r.memory.has(key) {
		r.acted("skip")
		return false
	}
	if r.tries[key]++; r.tries[key] > mostTries {
		return false
	}
	if err := r.memory.add(key); err != nil {
		r.config.Logger.Warn("that a pod is repaired cannot be remembered", "error", err)
	}
	err := r.do(ctx, p, s)
	switch {
	case err == nil:
		r.config.Logger.Warn("a pod had started without redirection", "pod", name(p), "uid", p.Metadata.UID, "done", r.config.Mode)
		if r.config.Mode != Mend {
			r.acted("success")
			r.event(p, true, reasonsDone[r.config.Mode], done[r.config.Mode])
		}
		return true
	case kube.IsConflict(err) || kube.IsNotFound(err): // it is not the pod any more that was looked at
		r.memory.drop(key)
		r.acted("skip")
	default: // nothing was changed
		r.memory.drop(key)
		r.acted("fail")
		r.config.Logger.Error("a pod without redirection could not be dealt with", "pod", name(p), "mode", r.config.Mode,
			"try", r.tries[key], "of", mostTries, "error", err)
		r.event(p, true, reasonFailed, "its traffic bypasses its proxy, and that could not be mended; delete it, so that it starts anew: "+err.Error())
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
	return r.config.Redirection.Mend(ctx, s, options)
}

// mended tells the result of mending by what is found in the pod afterwards, and by where packets go.
func (r *Repairer) mended(p *agentapi.Pod, e Evidence) {
	if e.State == Intact {
		r.acted("success")
		r.event(p, false, reasonRepaired, "its traffic had bypassed its proxy, as nothing redirected it or not as it should; now it is redirected, which packets have proved")
		return
	}
	r.acted("fail")
	r.event(p, true, reasonFailed, "it was mended without effect: delete it, so that it starts anew: "+brief(e.Differences))
	r.config.Logger.Error("a pod was mended without effect: delete it, so that it starts anew", "pod", name(p), "evidence", brief(e.Differences))
}

func (r *Repairer) acted(result string) {
	if r.config.Tell.Acted != nil {
		r.config.Tell.Acted(r.config.Mode, result)
	}
}
