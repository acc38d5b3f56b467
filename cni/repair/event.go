package repair

import (
	"github.com/pilotfish-mesh/pilotfish/cni/agentapi"
	"github.com/pilotfish-mesh/pilotfish/cni/kube"
)

// The reasons of Kubernetes events about pods.
const (
	reasonMissing  = "RedirectionMissing"
	reasonDrifted  = "RedirectionDrifted"
	reasonRefused  = "RedirectionRefused"
	reasonRepaired = "RedirectionRepaired"
	reasonFailed   = "RedirectionRepairFailed"
	reasonIntact   = "RedirectionIntact"
)

// refused is the prefix of messages about a pod whose options are invalid (Settings.Options returns an error).
const refused = "the pod's mesh settings are invalid: "

var (
	reasons  = map[State]string{Missing: reasonMissing, Drifted: reasonDrifted}
	messages = map[State]string{
		Missing: "the pod's traffic bypasses its sidecar; delete the pod, so that its controller creates another one: ",
		Drifted: "the pod's traffic is not redirected correctly; check which program changes rules in the pod, then delete the pod: ",
	}
	reasonsDone = map[Mode]string{Delete: "RedirectionPodDeleted", Label: "RedirectionPodLabelled"}
	done        = map[Mode]string{
		Delete: "the pod's traffic bypassed its sidecar: the pod was deleted, so that its controller creates another one",
		Label:  "the pod's traffic bypasses its sidecar: the pod was labelled; delete it, so that its controller creates another one",
	}
)

func (r *Repairer) event(p *agentapi.Pod, warning bool, reason, message string) {
	if r.config.Callbacks.Event != nil {
		r.config.Callbacks.Event(kube.PodEvent{Pod: p, Warning: warning, Reason: reason, Message: message})
	}
}
