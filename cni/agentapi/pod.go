package agentapi

import "time"

// Pod contains those fields of a Kubernetes pod that redirection needs. A pod in a response of the API server can be
// decoded into it.
type Pod struct {
	Metadata Metadata  `json:"metadata"`
	Spec     PodSpec   `json:"spec"`
	Status   PodStatus `json:"status,omitzero"`
}

// Metadata is a pod's object metadata.
type Metadata struct {
	Name              string            `json:"name"`
	Namespace         string            `json:"namespace"`
	UID               string            `json:"uid"`
	ResourceVersion   string            `json:"resourceVersion,omitempty"`
	Labels            map[string]string `json:"labels,omitempty"`
	Annotations       map[string]string `json:"annotations,omitempty"`
	DeletionTimestamp *time.Time        `json:"deletionTimestamp,omitempty"`
}

// PodSpec contains a pod's containers and security settings.
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

// EnvVar is an environment variable. Value is empty if the pod spec contains a reference to the value (valueFrom).
type EnvVar struct {
	Name  string `json:"name"`
	Value string `json:"value,omitempty"`
}

// SecurityContext contains the user and group IDs of a pod or container; nil if not set.
type SecurityContext struct {
	RunAsUser  *int64 `json:"runAsUser,omitempty"`
	RunAsGroup *int64 `json:"runAsGroup,omitempty"`
}

// PodStatus is a pod's status.
type PodStatus struct {
	Phase                 string            `json:"phase,omitempty"`
	PodIP                 string            `json:"podIP,omitempty"`
	PodIPs                []PodIP           `json:"podIPs,omitempty"`
	InitContainerStatuses []ContainerStatus `json:"initContainerStatuses,omitempty"`
	ContainerStatuses     []ContainerStatus `json:"containerStatuses,omitempty"`
}

// PodIP is one of a pod's IP addresses.
type PodIP struct {
	IP string `json:"ip"`
}

// ContainerStatus is a container's status.
type ContainerStatus struct {
	Name         string         `json:"name"`
	ContainerID  string         `json:"containerID,omitempty"`
	RestartCount int            `json:"restartCount,omitempty"`
	State        ContainerState `json:"state,omitzero"`
	LastState    ContainerState `json:"lastState,omitzero"`
}

// ContainerState is a container's state.
type ContainerState struct {
	Terminated *Termination `json:"terminated,omitempty"`
}

// Termination describes how a container terminated.
type Termination struct {
	ExitCode int `json:"exitCode"`
}

// IsTerminating reports whether the pod has terminated or is being deleted.
func (p *Pod) IsTerminating() bool {
	return p.Metadata.DeletionTimestamp != nil || p.Status.Phase == "Succeeded" || p.Status.Phase == "Failed"
}

// Addresses returns the IP addresses in the pod's status.
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
