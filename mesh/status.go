package mesh

import (
	"time"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
	"github.com/pilotfish-mesh/pilotfish/mesh/topology"
)

// Status is the state of the mesh, as `pilotfish status -o json` prints it.
type Status struct {
	Mesh       string    `json:"mesh"`
	PID        int       `json:"pid"`
	Started    time.Time `json:"started"`
	Ready      bool      `json:"ready"`
	File       string    `json:"file,omitempty"`
	RuntimeDir string    `json:"runtimeDir"`
	StateDir   string    `json:"stateDir"`
	Network    string    `json:"network"`
	// Captured reports whether workloads have network namespaces and the kernel redirects their traffic to their
	// sidecars.
	Captured    bool   `json:"captured"`
	TrustDomain string `json:"trustDomain"`
	Envoy       string `json:"envoy"`
	// EnvoyVersion is the version that the Envoy binary reports.
	EnvoyVersion string             `json:"envoyVersion"`
	Control      ControlPlaneStatus `json:"controlPlane"`
	Instances    []InstanceStatus   `json:"workloads"`
}

// ControlPlaneStatus is the state of the embedded control plane.
type ControlPlaneStatus struct {
	Running bool      `json:"running"`
	Since   time.Time `json:"since"`
	// Reason is the reason why the control plane is stopped or unhealthy.
	Reason  string `json:"reason,omitempty"`
	Address string `json:"address"`
	// Monitoring is the address of /metrics, for clients on this machine.
	Monitoring string   `json:"monitoring"`
	ConfigDir  []string `json:"config"`
	// Problems lists the current problems of documents.
	Problems []config.Problem `json:"problems"`
}

// InstanceStatus is the state of one workload instance.
type InstanceStatus struct {
	Name           string                `json:"name"`
	Workload       string                `json:"workload"`
	Namespace      string                `json:"namespace"`
	Type           topology.WorkloadType `json:"type"`
	ServiceAccount string                `json:"serviceAccount"`
	// ProxyAddress is the instance's address in the mesh, on which its sidecar listens if it has one. AppAddress is the
	// address on which the application listens.
	ProxyAddress string   `json:"proxyAddress"`
	AppAddress   string   `json:"appAddress,omitempty"`
	Published    []string `json:"published,omitempty"`
	Ready        bool     `json:"ready"`
	// Reasons lists the reasons why the instance is not ready.
	Reasons []string `json:"reasons,omitempty"`
	// App is the application's process; nil for a gateway.
	App *ProcessStatus `json:"application,omitempty"`
	// Agent is the agent's process. Its state is ProcessNone if the workload has no sidecar.
	Agent       ProcessStatus      `json:"agent"`
	EnvoyPID    int                `json:"envoyPid,omitempty"`
	Certificate *CertificateStatus `json:"certificate,omitempty"`
	Config      ConfigStatus       `json:"config"`
	// RequestsPerSecond is the rate of requests that the proxy has served in the last few seconds.
	RequestsPerSecond float64 `json:"requestsPerSecond"`
}

// ProcessState is the state of a process.
type ProcessState string

// The states of a process.
const (
	ProcessWaiting ProcessState = "waiting" // not started yet
	ProcessRunning ProcessState = "running"
	ProcessBackOff ProcessState = "back-off" // the process ended and will be restarted
	ProcessEnded   ProcessState = "ended"    // the process ended, and its restart rule does not require a restart
	ProcessFailed  ProcessState = "failed"   // the process ended with a failure and will not be restarted
	ProcessNone    ProcessState = "none"     // the instance has no such process
)

// ProcessStatus is the status of one process of an instance.
type ProcessStatus struct {
	State    ProcessState `json:"state"`
	PID      int          `json:"pid,omitempty"`
	Started  time.Time    `json:"started,omitzero"`
	Restarts int          `json:"restarts"`
	LastExit *Exit        `json:"lastExit,omitempty"`

	unsteady bool // its last exit was unexpected
}

// CertificateStatus is the certificate that an instance presents to its peers.
type CertificateStatus struct {
	SPIFFEID string    `json:"spiffeId"`
	Expires  time.Time `json:"expires"`
}

// ConfigState reports whether a proxy has the control plane's newest configuration.
type ConfigState string

// The states of a proxy's configuration.
const (
	ConfigInSync       ConfigState = "in sync"
	ConfigPending      ConfigState = "pending"
	ConfigRejected     ConfigState = "rejected"
	ConfigDegraded     ConfigState = "degraded" // the proxy does not serve as its configuration specifies
	ConfigDisconnected ConfigState = "not connected"
	ConfigNone         ConfigState = "none" // the workload has no proxy
)

// ConfigStatus is the configuration state of one proxy.
type ConfigStatus struct {
	State    ConfigState `json:"state"`
	Reason   string      `json:"reason,omitempty"`
	Rejected []Rejection `json:"rejected,omitempty"`
}

// Rejection is configuration that a proxy rejected. The proxy continues with its last accepted configuration.
type Rejection struct {
	Type      string    `json:"type"`
	Time      time.Time `json:"time"`
	Resources []string  `json:"resources,omitempty"`
	Reason    string    `json:"reason"`
	// From lists the documents from which the rejected resources were built, the most likely cause first.
	From []xds.SuspectDocument `json:"from,omitempty"`
	// Remedy describes how to fix the cause, if it is known.
	Remedy string `json:"remedy,omitempty"`
}
