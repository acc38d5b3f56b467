package xdsproxy

import "time"

// Status is the state of the relay.
type Status struct {
	// Connected reports whether a control plane serves the active stream.
	Connected bool `json:"connected"`
	// Upstream is the address of the control plane. While there is no connection, it is the last address that was tried.
	Upstream string `json:"upstream,omitempty"`
	// Since is the time at which Connected last changed.
	Since time.Time `json:"since,omitzero"`
	// Reason is the reason why there is no connection. It is empty if there is one.
	Reason string `json:"reason,omitempty"`
	// LastResponse is the time of the last response of a control plane.
	LastResponse time.Time `json:"lastResponse,omitzero"`
	// EnvoyConnected reports whether Envoy has a stream.
	EnvoyConnected bool `json:"envoyConnected"`
	// Protocol is the protocol variant of Envoy's last stream: "delta" or "sotw".
	Protocol string `json:"protocol,omitempty"`
	// LastGood is the state of the last accepted configuration.
	LastGood *LastGoodStatus `json:"lastGood,omitempty"`
	// Types are sorted by type URL.
	Types []TypeStatus `json:"types,omitempty"`
}

// TypeStatus is the state of a resource type. Its counters start at 0 when the relay starts.
type TypeStatus struct {
	TypeURL string `json:"typeUrl"`
	// State is "acknowledged", "rejected", "pending" (sent to Envoy, which has not replied) or "requested" (no response
	// yet).
	State string `json:"state"`
	// Subscribed is the number of resource names that Envoy requests. Wildcard reports whether it requests all
	// resources.
	Subscribed int  `json:"subscribed"`
	Wildcard   bool `json:"wildcard,omitempty"`

	Requests      uint64 `json:"requests"`
	Responses     uint64 `json:"responses"`
	Acks          uint64 `json:"acks"`
	Nacks         uint64 `json:"nacks"`
	ResponseBytes uint64 `json:"responseBytes"`

	// LastResponse is the time of the last response, and LastResources the number of its resources.
	LastResponse  time.Time `json:"lastResponse,omitzero"`
	LastResources int       `json:"lastResources"`
	// LastAck is the time of the last ACK. Version is the version of the response that this ACK accepted.
	LastAck time.Time `json:"lastAck,omitzero"`
	Version string    `json:"version,omitempty"`
	// LastNack is the last NACK, even if Envoy has accepted a newer response.
	LastNack *Nack `json:"lastNack,omitempty"`
	// Rejected lists the resources that Envoy currently rejects, as far as its NACKs name them.
	Rejected []ResourceNack `json:"rejected,omitempty"`
}

// Nack describes a rejected response.
type Nack struct {
	Time time.Time `json:"time"`
	// Reason is Envoy's error message.
	Reason  string `json:"reason"`
	Version string `json:"version,omitempty"`
}

// States of a type.
const (
	StateAcknowledged = "acknowledged"
	StateRejected     = "rejected"
	StatePending      = "pending"
	StateRequested    = "requested"
)
