package agentapi

import (
	"encoding/json"
	"time"
)

// Refusal is the body of every error response.
type Refusal struct {
	// Error is the error and its remedy.
	Error string `json:"error"`
}

// LogEntry is one line of the plugin's log.
type LogEntry struct {
	Time    time.Time `json:"time"`
	Level   string    `json:"level"` // log/slog level: DEBUG, INFO, WARN, ERROR
	Message string    `json:"msg"`
	// Attributes are the attributes of the line in the format of slog's JSON handler.
	Attributes map[string]json.RawMessage `json:"attributes,omitempty"`
}

// Outcome is the outcome of a command of the plugin.
type Outcome string

// The outcomes.
const (
	Captured Outcome = "captured" // rules were applied, or verified by CHECK
	Skipped  Outcome = "skipped"  // the pod is not in the mesh or opts out: see Reason
	Failed   Outcome = "failed"   // the pod's start was refused
	Removed  Outcome = "removed"  // of DEL and GC
)

// Result is the result of one command, for the agent's metrics and its checks of live pods.
type Result struct {
	Command     string  `json:"command"` // ADD, CHECK, DEL, GC
	Outcome     Outcome `json:"outcome"`
	Reason      string  `json:"reason,omitempty"` // Skipped: a word; Failed: the error
	ContainerID string  `json:"containerID,omitempty"`
	NetNS       string  `json:"netns,omitempty"` // path of the sandbox's network namespace on the node
	Namespace   string  `json:"namespace,omitempty"`
	Pod         string  `json:"pod,omitempty"`
	UID         string  `json:"uid,omitempty"`
	// Source is the source of the pod: "agent", "api" or "policy".
	Source string `json:"source,omitempty"`
	// Seconds is the time from the plugin's start to its result.
	Seconds float64 `json:"seconds"`
}
