// Package pod decides, for a pod of Kubernetes or of a local policy, whether its traffic is to be captured, and with which
// options. The CNI plugin decides by it when a pod starts; the node agent, when it looks at pods that run.
package pod

import "slices"

// Pod is what of a Kubernetes pod bears on capture. Its JSON is that of the Kubernetes API, so that an answer of the API
// decodes into it, and everything else falls away.
type Pod struct {
	Metadata Metadata `json:"metadata"`
	Spec     Spec     `json:"spec"`
}

// Metadata names the pod and carries its settings.
type Metadata struct {
	Name        string            `json:"name"`
	Namespace   string            `json:"namespace"`
	UID         string            `json:"uid,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// Spec is how the pod runs.
type Spec struct {
	HostNetwork     bool             `json:"hostNetwork,omitempty"`
	Containers      []Container      `json:"containers,omitempty"`
	InitContainers  []Container      `json:"initContainers,omitempty"`
	SecurityContext *SecurityContext `json:"securityContext,omitempty"`
}

// Container is one container of a pod. An init container whose restart policy is Always runs beside the others.
type Container struct {
	Name            string           `json:"name"`
	Args            []string         `json:"args,omitempty"`
	Env             []EnvVar         `json:"env,omitempty"`
	RestartPolicy   string           `json:"restartPolicy,omitempty"`
	SecurityContext *SecurityContext `json:"securityContext,omitempty"`
}

// EnvVar is a variable of a container's environment. Where its value comes from elsewhere, Value is empty.
type EnvVar struct {
	Name  string `json:"name"`
	Value string `json:"value,omitempty"`
}

// SecurityContext holds the ids that a container runs with.
type SecurityContext struct {
	RunAsUser  *int64 `json:"runAsUser,omitempty"`
	RunAsGroup *int64 `json:"runAsGroup,omitempty"`
}

// ProxyContainer is the name of the sidecar's container, ValidationContainer that of the init container that waits for the
// CNI plugin's work, InitContainer that of the one that redirects by itself.
const (
	ProxyContainer      = "istio-proxy"
	ValidationContainer = "istio-validation"
	InitContainer       = "istio-init"
)

// mirrorOf is the annotation of a mirror pod: the UID that the kubelet, and so the container runtime, has for it.
const mirrorOf = "kubernetes.io/config.mirror"

// HasUID tells whether the pod is the one that the container runtime means by uid. The API has another UID for a static
// pod than the kubelet. An empty uid, of an old runtime, fits every pod.
func (p *Pod) HasUID(uid string) bool {
	return uid == "" || p.Metadata.UID == uid || p.Metadata.Annotations[mirrorOf] == uid
}

// Proxy is the sidecar's container: an ordinary one, or an init container that runs on. It is nil where there is none.
func (p *Pod) Proxy() *Container {
	for _, list := range [][]Container{p.Spec.Containers, p.Spec.InitContainers} {
		if i := slices.IndexFunc(list, func(c Container) bool { return c.Name == ProxyContainer }); i >= 0 {
			return &list[i]
		}
	}
	return nil
}

// Lookup gives the value of a variable of the container's environment; of several of one name the last holds, as in Kubernetes.
func (c *Container) Lookup(name string) (value string, set bool) {
	for _, e := range c.Env {
		if e.Name == name {
			value, set = e.Value, true
		}
	}
	return value, set
}

// ids are the user and the group that the container runs with, where the pod says so.
func (p *Pod) ids(c *Container) (uid, gid *int64) {
	for _, s := range []*SecurityContext{p.Spec.SecurityContext, c.SecurityContext} {
		if s == nil {
			continue
		}
		if s.RunAsUser != nil {
			uid = s.RunAsUser
		}
		if s.RunAsGroup != nil {
			gid = s.RunAsGroup
		}
	}
	return uid, gid
}
