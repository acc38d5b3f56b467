package agentapi

import "time"

// Pod is what redirection needs to know of a pod. It has the form of the Kubernetes API, of which it is a part: an answer
// of the API server is read into it as it stands.
type Pod struct {
	Metadata Metadata  `json:"metadata"`
	Spec     PodSpec   `json:"spec"`
	Status   PodStatus `json:"status,omitzero"`
}

// Metadata are a pod's name and what was written on it.
type Metadata struct {
	Name              string            `json:"name"`
	Namespace         string            `json:"namespace"`
	UID               string            `json:"uid"`
	ResourceVersion   string            `json:"resourceVersion,omitempty"`
	Labels            map[string]string `json:"labels,omitempty"`
	Annotations       map[string]string `json:"annotations,omitempty"`
	DeletionTimestamp *time.Time        `json:"deletionTimestamp,omitempty"`
}

// PodSpec are a pod's containers and what they may.
type PodSpec struct {
	NodeName           string          `json:"nodeName,omitempty"`
	HostNetwork        bool            `json:"hostNetwork,omitempty"`
	ServiceAccountName string          `json:"serviceAccountName,omitempty"`
	SecurityContext    SecurityContext `json:"securityContext,omitzero"`
	InitContainers     []Container     `json:"initContainers,omitempty"`
	Containers         []Container     `json:"containers,omitempty"`
}

// Container is one container of a pod. A native sidecar is an init container whose RestartPolicy is "Always".
type Container struct {
	Name            string          `json:"name"`
	Image           string          `json:"image,omitempty"`
	Args            []string        `json:"args,omitempty"`
	Env             []EnvVar        `json:"env,omitempty"`
	RestartPolicy   string          `json:"restartPolicy,omitempty"`
	SecurityContext SecurityContext `json:"securityContext,omitzero"`
}

// EnvVar is a variable whose value is written in the pod itself; those taken from elsewhere have an empty value.
type EnvVar struct {
	Name  string `json:"name"`
	Value string `json:"value,omitempty"`
}

// SecurityContext is whom a container runs as; nil where it is not said.
type SecurityContext struct {
	RunAsUser  *int64 `json:"runAsUser,omitempty"`
	RunAsGroup *int64 `json:"runAsGroup,omitempty"`
}

// PodStatus is how a pod is doing.
type PodStatus struct {
	Phase                 string            `json:"phase,omitempty"`
	PodIP                 string            `json:"podIP,omitempty"`
	PodIPs                []PodIP           `json:"podIPs,omitempty"`
	InitContainerStatuses []ContainerStatus `json:"initContainerStatuses,omitempty"`
	ContainerStatuses     []ContainerStatus `json:"containerStatuses,omitempty"`
}

// PodIP is one of a pod's addresses.
type PodIP struct {
	IP string `json:"ip"`
}

// ContainerStatus is how a container is doing.
type ContainerStatus struct {
	Name         string         `json:"name"`
	ContainerID  string         `json:"containerID,omitempty"`
	RestartCount int            `json:"restartCount,omitempty"`
	State        ContainerState `json:"state,omitzero"`
	LastState    ContainerState `json:"lastState,omitzero"`
}

// ContainerState is what a container does, or how it ended.
type ContainerState struct {
	Terminated *Termination `json:"terminated,omitempty"`
}

// Termination is how a container ended.
type Termination struct {
	ExitCode int `json:"exitCode"`
}

// Over says that the pod has ended, or is about to.
func (p *Pod) Over() bool {
	return p.Metadata.DeletionTimestamp != nil || p.Status.Phase == "Succeeded" || p.Status.Phase == "Failed"
}

// Addresses are the pod's own, as far as they are known.
func (p *Pod) Addresses() []string {
	var all []string
	for _, ip := range p.Status.PodIPs {
		all = append(all, ip.IP)
	}
	if len(all) == 0 && p.Status.PodIP != "" {
		all = []string{p.Status.PodIP}
	}
	return all
}
