// Package capture decides, for a pod of Kubernetes or of a local policy, whether its traffic is to be captured, and with
// which options. The CNI plugin decides by it when a pod starts; the node agent, when it looks at pods that run.
package capture

import (
	"slices"

	"github.com/pilotfish-mesh/pilotfish/cni/agentapi"
)

// The containers that an injector adds: the sidecar, the init container that redirects by itself, and the one that waits
// for the CNI plugin's work and proves it.
const (
	ProxyContainer      = "istio-proxy"
	InitContainer       = "istio-init"
	ValidationContainer = "istio-validation"
)

// mirrorOf is the annotation of a mirror pod: the UID that the kubelet, and so the container runtime, has for it.
const mirrorOf = "kubernetes.io/config.mirror"

// HasUID tells whether the pod is the one that the container runtime means by uid. The API has another UID for a static
// pod than the kubelet. An empty uid, of an old runtime, fits every pod.
func HasUID(p *agentapi.Pod, uid string) bool {
	return uid == "" || p.Metadata.UID == uid || p.Metadata.Annotations[mirrorOf] == uid
}

// Proxy is the sidecar's container: an ordinary one, or an init container that runs on. It is nil where there is none.
func Proxy(p *agentapi.Pod) *agentapi.Container {
	for _, list := range [][]agentapi.Container{p.Spec.Containers, p.Spec.InitContainers} {
		if i := slices.IndexFunc(list, func(c agentapi.Container) bool { return c.Name == ProxyContainer }); i >= 0 {
			return &list[i]
		}
	}
	return nil
}

// lookup gives the value of a variable of the container's environment; of several of one name the last holds, as in
// Kubernetes.
func lookup(c *agentapi.Container, name string) (value string, set bool) {
	for _, e := range c.Env {
		if e.Name == name {
			value, set = e.Value, true
		}
	}
	return value, set
}

// ids are the user and the group that the container runs with, where the pod says so.
func ids(p *agentapi.Pod, c *agentapi.Container) (uid, gid *int64) {
	for _, s := range []agentapi.SecurityContext{p.Spec.SecurityContext, c.SecurityContext} {
		if s.RunAsUser != nil {
			uid = s.RunAsUser
		}
		if s.RunAsGroup != nil {
			gid = s.RunAsGroup
		}
	}
	return uid, gid
}
