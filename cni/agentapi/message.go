package agentapi

import (
	"encoding/json"
	"time"
)

// Refusal is the body of every answer that is no success.
type Refusal struct {
	// Error says what is wrong and what would mend it.
	Error string `json:"error"`
}

// LogEntry is one line of the plugin's log.
type LogEntry struct {
	Time    time.Time `json:"time"`
	Level   string    `json:"level"` // of log/slog: DEBUG, INFO, WARN, ERROR
	Message string    `json:"msg"`
	// Attributes are those of the line, each as it would stand in a JSON log.
	Attributes map[string]json.RawMessage `json:"attributes,omitempty"`
}

// Outcome is how a command of the plugin ended.
type Outcome string

// The outcomes.
const (
	Captured Outcome = "captured" // rules were put in force, or found in force by CHECK
	Skipped  Outcome = "skipped"  // the pod is none of ours, or says it wants none: see Reason
	Failed   Outcome = "failed"   // the pod was refused
	Removed  Outcome = "removed"  // of DEL and GC
)

// Result tells the agent how one command ended, for its metrics and for its checks of live pods.
type Result struct {
	Command     string  `json:"command"` // ADD, CHECK, DEL, GC
	Outcome     Outcome `json:"outcome"`
	Reason      string  `json:"reason,omitempty"` // of Skipped: a word; of Failed: the error
	ContainerID string  `json:"containerID,omitempty"`
	NetNS       string  `json:"netns,omitempty"` // path of the sandbox's network namespace on the node
	Namespace   string  `json:"namespace,omitempty"`
	Pod         string  `json:"pod,omitempty"`
	UID         string  `json:"uid,omitempty"`
	// Source is where the pod was read: "agent", "api" or "policy".
	Source string `json:"source,omitempty"`
	// Seconds is from the plugin's start to its answer.
	Seconds float64 `json:"seconds"`
}
