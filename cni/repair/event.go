package repair

import (
	"github.com/pilotfish-mesh/pilotfish/cni/agentapi"
	"github.com/pilotfish-mesh/pilotfish/cni/kube"
)

// The event reasons.
const (
	reasonMissing  = "RedirectionMissing"
	reasonDrifted  = "RedirectionDrifted"
	reasonRefused  = "RedirectionRefused"
	reasonRepaired = "RedirectionRepaired"
	reasonFailed   = "RedirectionRepairFailed"
	reasonIntact   = "RedirectionIntact"
)

const refused = "its mesh settings are invalid: "

var (
	reasons  = map[State]string{Missing: reasonMissing, Drifted: reasonDrifted}
	messages = map[State]string{
		Missing: "its traffic bypasses its proxy; delete the pod, so that it restarts: ",
		Drifted: "its traffic is not redirected correctly; check which program changes rules in the pod, and restart the pod: ",
	}
	reasonsDone = map[Mode]string{Delete: "RedirectionPodDeleted", Label: "RedirectionPodLabelled"}
	done        = map[Mode]string{
		Delete: "its traffic bypassed its proxy: the pod is deleted, so that its controller creates another one",
		Label:  "its traffic bypasses its proxy: the pod is labelled; delete it, so that it restarts",
	}
)

func (r *Repairer) event(p *agentapi.Pod, warning bool, reason, message string) {
	if r.config.Callbacks.Event != nil {
		r.config.Callbacks.Event(kube.PodEvent{Pod: p, Warning: warning, Reason: reason, Message: message})
	}
}
