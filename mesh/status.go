package mesh

import (
	"time"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
)

// Status is the whole mesh at one moment, as `pilotfish status -o json` prints it.
type Status struct {
	Mesh       string    `json:"mesh"`
	PID        int       `json:"pid"`
	Started    time.Time `json:"started"`
	Ready      bool      `json:"ready"`
	File       string    `json:"file,omitempty"`
	RuntimeDir string    `json:"runtimeDir"`
	StateDir   string    `json:"stateDir"`
	Network    string    `json:"network"`
	// Captured says that workloads have network namespaces, and that their traffic finds their sidecars by itself.
	Captured    bool   `json:"captured"`
	TrustDomain string `json:"trustDomain"`
	Envoy       string `json:"envoy"`
	// EnvoyVersion is the version that this Envoy gives of itself.
	EnvoyVersion string             `json:"envoyVersion"`
	Control      ControlPlaneStatus `json:"controlPlane"`
	Instances    []InstanceStatus   `json:"workloads"`
}

// ControlPlaneStatus is the state of the embedded control plane.
type ControlPlaneStatus struct {
	Running bool      `json:"running"`
	Since   time.Time `json:"since"`
	// Reason says why it does not run, or is not healthy.
	Reason    string   `json:"reason,omitempty"`
	Address   string   `json:"address"`
	ConfigDir []string `json:"config"`
	// Problems are the documents that are refused or suspicious now.
	Problems []config.Problem `json:"problems"`
}

// InstanceStatus is one workload instance.
type InstanceStatus struct {
	Name           string       `json:"name"`
	Workload       string       `json:"workload"`
	Namespace      string       `json:"namespace"`
	Type           WorkloadType `json:"type"`
	ServiceAccount string       `json:"serviceAccount"`
	// ProxyAddress is where the sidecar listens (the instance's address in the mesh), AppAddress where the application does.
	ProxyAddress string   `json:"proxyAddress"`
	AppAddress   string   `json:"appAddress,omitempty"`
	Published    []string `json:"published,omitempty"`
	Ready        bool     `json:"ready"`
	// Reasons say what keeps it from being ready.
	Reasons []string `json:"reasons,omitempty"`
	// App is nil for a gateway and for an application that someone else runs.
	App         *ProcessStatus     `json:"application,omitempty"`
	Agent       ProcessStatus      `json:"agent"`
	EnvoyPID    int                `json:"envoyPid,omitempty"`
	Certificate *CertificateStatus `json:"certificate,omitempty"`
	Config      ConfigStatus       `json:"config"`
	// RequestsPerSecond counts the requests that the proxy served, over the last few seconds.
	RequestsPerSecond float64 `json:"requestsPerSecond"`
}

// ProcessState is where a process is in its life.
type ProcessState string

// The states of a process.
const (
	ProcessWaiting ProcessState = "waiting" // not started yet
	ProcessRunning ProcessState = "running"
	ProcessBackOff ProcessState = "back-off" // ended, and will be started again
	ProcessEnded   ProcessState = "ended"    // ended as its restart rule allows
	ProcessFailed  ProcessState = "failed"   // ended, and will not be started again
)

// ProcessStatus is one process of an instance.
type ProcessStatus struct {
	State    ProcessState `json:"state"`
	PID      int          `json:"pid,omitempty"`
	Started  time.Time    `json:"started,omitzero"`
	Restarts int          `json:"restarts"`
	LastExit *Exit        `json:"lastExit,omitempty"`

	unsteady bool // it ended unasked the last time
}

// CertificateStatus is the certificate that an instance shows to its peers.
type CertificateStatus struct {
	SPIFFEID string    `json:"spiffeId"`
	Expires  time.Time `json:"expires"`
}

// ConfigState says how an instance's proxy stands to the control plane's newest configuration.
type ConfigState string

// The states of a proxy's configuration.
const (
	ConfigInSync       ConfigState = "in sync"
	ConfigPending      ConfigState = "pending"
	ConfigRejected     ConfigState = "rejected"
	ConfigDisconnected ConfigState = "not connected"
)

// ConfigStatus is the configuration of one proxy.
type ConfigStatus struct {
	State    ConfigState `json:"state"`
	Reason   string      `json:"reason,omitempty"`
	Rejected []Rejection `json:"rejected,omitempty"`
}

// Rejection is configuration that a proxy refused; it keeps what it had before.
type Rejection struct {
	Type      string    `json:"type"`
	Time      time.Time `json:"time"`
	Resources []string  `json:"resources,omitempty"`
	Reason    string    `json:"reason"`
	// From is the documents that the resources were made of, the likeliest cause first.
	From []xds.Blamed `json:"from,omitempty"`
	// Remedy says what to do about it, where that can be told.
	Remedy string `json:"remedy,omitempty"`
}
