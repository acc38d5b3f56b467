// Package capture decides whether a pod's traffic is captured, and with which redirection options. The CNI plugin uses
// it when a pod starts, and the node agent when it checks running pods.
package capture

import (
	"slices"

	"github.com/pilotfish-mesh/pilotfish/cni/agentapi"
)

// The names of the containers that Istio's injector adds to pods.
const (
	ProxyContainer      = "istio-proxy"      // the sidecar
	InitContainer       = "istio-init"       // redirects the pod's traffic without a CNI plugin
	ValidationContainer = "istio-validation" // waits until the CNI plugin's redirection works
)

// mirrorOf is the annotation of a mirror pod whose value is the static pod's UID in the kubelet and the container
// runtime.
const mirrorOf = "kubernetes.io/config.mirror"

// HasUID reports whether uid, from the container runtime, identifies the pod. The API server and the kubelet have
// different UIDs for a static pod. An empty uid, from an old runtime, matches every pod.
func HasUID(p *agentapi.Pod, uid string) bool {
	return uid == "" || p.Metadata.UID == uid || p.Metadata.Annotations[mirrorOf] == uid
}

// Proxy returns the sidecar's container, or nil. A native sidecar is an init container.
func Proxy(p *agentapi.Pod) *agentapi.Container {
	for _, list := range [][]agentapi.Container{p.Spec.Containers, p.Spec.InitContainers} {
		if i := slices.IndexFunc(list, func(c agentapi.Container) bool { return c.Name == ProxyContainer }); i >= 0 {
			return &list[i]
		}
	}
	return nil
}

// lookupEnv returns the value of an environment variable of the container. If several entries have the name, the last
// one applies, as in Kubernetes.
func lookupEnv(c *agentapi.Container, name string) (value string, set bool) {
	for _, e := range c.Env {
		if e.Name == name {
			value, set = e.Value, true
		}
	}
	return value, set
}

// ids returns the user and group IDs of the container; nil where the pod does not specify them.
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
