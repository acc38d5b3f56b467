package agentapi

import (
	"encoding/json"
	"time"
)

// Refusal is the body of every error response.
type Refusal struct {
	// Error describes the error and its remedy.
	Error string `json:"error"`
}

// LogEntry is one line of the plugin's log.
type LogEntry struct {
	Time    time.Time `json:"time"`
	Level   string    `json:"level"` // log/slog level: DEBUG, INFO, WARN, ERROR
	Message string    `json:"msg"`
	// Attributes are the line's attributes, in the encoding of slog.JSONHandler.
	Attributes map[string]json.RawMessage `json:"attributes,omitempty"`
}

// Outcome is the outcome of one CNI command.
type Outcome string

// The values of Outcome.
const (
	Captured Outcome = "captured" // ADD installed the redirection rules, or CHECK verified them
	Skipped  Outcome = "skipped"  // the pod is not redirected; Result.Reason contains the reason
	Failed   Outcome = "failed"   // the command failed; after a failed ADD the pod does not start
	Removed  Outcome = "removed"  // DEL or GC succeeded
)

// Result is the result of one CNI command. The agent uses it for metrics and for its checks of running pods.
type Result struct {
	Command     string  `json:"command"` // ADD, CHECK, DEL, GC
	Outcome     Outcome `json:"outcome"`
	Reason      string  `json:"reason,omitempty"` // Skipped: a word such as "no-sidecar"; Failed: the error
	ContainerID string  `json:"containerID,omitempty"`
	NetNS       string  `json:"netns,omitempty"` // path of the sandbox's network namespace on the node
	Namespace   string  `json:"namespace,omitempty"`
	Pod         string  `json:"pod,omitempty"`
	UID         string  `json:"uid,omitempty"`
	// Source is where the plugin got the pod from: "agent" (node agent), "api" (API server) or "policy" (policy file).
	Source string `json:"source,omitempty"`
	// Seconds is the time from the start of the plugin's process to the result.
	Seconds float64 `json:"seconds"`
}
