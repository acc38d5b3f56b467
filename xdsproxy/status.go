package xdsproxy

import "time"

// Status is what is known of the relay at one moment.
type Status struct {
	// Connected says that a control plane has answered on the stream in force.
	Connected bool `json:"connected"`
	// Upstream is the control plane's address, or the last one that was tried.
	Upstream string `json:"upstream,omitempty"`
	// Since is when Connected last changed.
	Since time.Time `json:"since,omitzero"`
	// Reason says why there is no connection, or nothing.
	Reason string `json:"reason,omitempty"`
	// LastResponse is when a control plane last sent anything.
	LastResponse time.Time `json:"lastResponse,omitzero"`
	// EnvoyConnected says that Envoy has a stream to the relay.
	EnvoyConnected bool `json:"envoyConnected"`
	// Protocol is what Envoy's last stream spoke: "delta" or "sotw".
	Protocol string `json:"protocol,omitempty"`
	// LastGood tells how old Envoy's configuration is where that is not the control plane's of now.
	LastGood *LastGoodStatus `json:"lastGood,omitempty"`
	// Types are ordered by type URL.
	Types []TypeStatus `json:"types,omitempty"`
}

// TypeStatus is what is known of one type of resource. Counts are since the relay's start.
type TypeStatus struct {
	TypeURL string `json:"typeUrl"`
	// State is "acknowledged", "rejected", "pending" (sent, not answered) or "requested" (asked for, not sent).
	State string `json:"state"`
	// Subscribed is how many names Envoy asks for on its stream; Wildcard says that it asks for all there are.
	Subscribed int  `json:"subscribed"`
	Wildcard   bool `json:"wildcard,omitempty"`

	Requests      uint64 `json:"requests"`
	Responses     uint64 `json:"responses"`
	Acks          uint64 `json:"acks"`
	Nacks         uint64 `json:"nacks"`
	ResponseBytes uint64 `json:"responseBytes"`

	// LastResponse and LastResources (how many it carried) are of the last response.
	LastResponse  time.Time `json:"lastResponse,omitzero"`
	LastResources int       `json:"lastResources"`
	// LastAck is when Envoy last accepted a response, and Version that response's version.
	LastAck time.Time `json:"lastAck,omitzero"`
	Version string    `json:"version,omitempty"`
	// LastNack is the last rejection, whether or not something better came since.
	LastNack *Nack `json:"lastNack,omitempty"`
	// Rejected are the resources that Envoy rejects at the moment, as far as it names them.
	Rejected []ResourceNack `json:"rejected,omitempty"`
}

// Nack is a response that Envoy rejected.
type Nack struct {
	Time time.Time `json:"time"`
	// Reason is Envoy's own message; it names the resources.
	Reason  string `json:"reason"`
	Version string `json:"version,omitempty"`
}

// The states of a type.
const (
	StateAcknowledged = "acknowledged"
	StateRejected     = "rejected"
	StatePending      = "pending"
	StateRequested    = "requested"
)
