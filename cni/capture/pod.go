// Package capture decides whether the traffic of a pod from Kubernetes or a local policy is captured, and with which
// options. The CNI plugin uses it when a pod starts, and the node agent when it checks running pods.
package capture

import (
	"slices"

	"github.com/pilotfish-mesh/pilotfish/cni/agentapi"
)

// The containers that an injector adds: the sidecar, the init container that redirects by itself, and the one that
// waits for the CNI plugin's redirection and validates it.
const (
	ProxyContainer      = "istio-proxy"
	InitContainer       = "istio-init"
	ValidationContainer = "istio-validation"
)

// mirrorOf is the annotation of a mirror pod with the UID that the kubelet and the container runtime use.
const mirrorOf = "kubernetes.io/config.mirror"

// HasUID reports whether uid, from the container runtime, identifies the pod. The API server and the kubelet have
// different UIDs for a static pod. An empty uid, from an old runtime, matches every pod.
func HasUID(p *agentapi.Pod, uid string) bool {
	return uid == "" || p.Metadata.UID == uid || p.Metadata.Annotations[mirrorOf] == uid
}

// Proxy returns the sidecar's container, which may be a native sidecar, or nil.
func Proxy(p *agentapi.Pod) *agentapi.Container {
	for _, list := range [][]agentapi.Container{p.Spec.Containers, p.Spec.InitContainers} {
		if i := slices.IndexFunc(list, func(c agentapi.Container) bool { return c.Name == ProxyContainer }); i >= 0 {
			return &list[i]
		}
	}
	return nil
}

// lookupEnv returns the value of an environment variable of the container. The last of several entries applies, as in
// Kubernetes.
func lookupEnv(c *agentapi.Container, name string) (value string, set bool) {
	for _, e := range c.Env {
		if e.Name == name {
			value, set = e.Value, true
		}
	}
	return value, set
}

// ids returns the user and group of the container; nil where the pod does not specify them.
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
