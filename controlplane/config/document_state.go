package config

import "time"

// DocumentState is the result of reading a document.
type DocumentState string

// States of a document.
const (
	InForce DocumentState = "in force"  // the current text is in force
	Stale   DocumentState = "stale"     // the current text is refused, and the last accepted version is in force
	Refused DocumentState = "refused"   // no version is in force
	Denied  DocumentState = "denied"    // no version of the policy was accepted: its workloads' traffic is denied
	Inert   DocumentState = "no effect" // the kind has no effect here
)

// Document reports the state of one document of a source.
type Document struct {
	Key   Key           `json:"resource"`
	At    Position      `json:"at"`
	State DocumentState `json:"state"`
	// Since is when the version in force was first read; zero if no version is in force.
	Since time.Time `json:"since,omitzero"`
}
