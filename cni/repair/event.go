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

const refused = "its settings for the mesh are refused: "

var (
	reasons  = map[State]string{Missing: reasonMissing, Drifted: reasonDrifted}
	messages = map[State]string{
		Missing: "its traffic bypasses its proxy; delete it, so that it starts anew: ",
		Drifted: "its traffic is not redirected as it should be; see who changes rules in it, and start it anew: ",
	}
	reasonsDone = map[Mode]string{Delete: "RedirectionPodDeleted", Label: "RedirectionPodLabelled"}
	done        = map[Mode]string{
		Delete: "its traffic bypassed its proxy: it is deleted for its controller to make another",
		Label:  "its traffic bypasses its proxy: it is labelled; delete it, so that it starts anew",
	}
)

func (r *Repairer) event(p *agentapi.Pod, warning bool, reason, message string) {
	if r.config.Callbacks.Event != nil {
		r.config.Callbacks.Event(kube.PodEvent{Pod: p, Warning: warning, Reason: reason, Message: message})
	}
}
