package verify

import (
	"fmt"
	"strings"
	"time"

	"github.com/pilotfish-mesh/pilotfish/iptables"
)

// Report is the result of a verification.
type Report struct {
	// Backend is the name of the backend that read the installed rules; "" if they were not read.
	Backend string `json:"backend"`
	// Families are the address families whose traffic the rules handle.
	Families iptables.Families `json:"families"`
	// Differences lists how the installed rules differ from the expected ones.
	Differences []iptables.Difference `json:"differences,omitempty"`
	// Proofs are the results of the test packets.
	Proofs []Proof `json:"proofs,omitempty"`
	// Notes lists observations that are not faults.
	Notes []string `json:"notes,omitempty"`
	// Unproven lists what packets could not verify, with the reasons.
	Unproven []string      `json:"unproven,omitempty"`
	Took     time.Duration `json:"took_ns"`

	foreign []iptables.ForeignChain
}

// OK reports whether the report has no differences and no failed proofs.
func (r *Report) OK() bool {
	return len(r.Differences) == 0 && len(r.Failed()) == 0
}

// Failed returns the proofs whose packets did not arrive as expected.
func (r *Report) Failed() (failed []Proof) {
	for _, p := range r.Proofs {
		if !p.OK && p.Unproven == "" {
			failed = append(failed, p)
		}
	}
	return failed
}

// Proven returns the number of packets that arrived as expected.
func (r *Report) Proven() (n int) {
	for _, p := range r.Proofs {
		if p.OK {
			n++
		}
	}
	return n
}

// Err returns a *Mismatch with all differences and failed proofs, or nil if there are none.
func (r *Report) Err() error {
	if r.OK() {
		return nil
	}
	var parts []string
	for _, d := range r.Differences {
		parts = append(parts, d.String())
	}
	for _, p := range r.Failed() {
		parts = append(parts, p.Consequence)
	}
	return &Mismatch{parts}
}

// Mismatch is the error if the redirection of a namespace differs from the expected one.
type Mismatch struct{ Findings []string }

// maxErrorFindings is the maximum number of findings in the error text. The report contains all findings.
const maxErrorFindings = 5

func (m *Mismatch) Error() string {
	shown := m.Findings
	more := ""
	if len(shown) > maxErrorFindings {
		more = fmt.Sprintf("; and %d more", len(shown)-maxErrorFindings)
		shown = shown[:maxErrorFindings]
	}
	return "the redirection differs from the expected one: " + strings.Join(shown, "; ") + more
}

// String returns the report as text. It lists only the packets that did not arrive as expected.
func (r *Report) String() string { return r.text(false) }

// Details returns the report as text, with a line for every packet.
func (r *Report) Details() string { return r.text(true) }

func (r *Report) text(all bool) string {
	var b strings.Builder
	switch {
	case r.Backend == "":
		fmt.Fprintf(&b, "rules      not read\n")
	case len(r.Differences) == 0:
		fmt.Fprintf(&b, "rules      no differences (%s, %s)\n", r.Backend, r.Families)
	default:
		fmt.Fprintf(&b, "rules      %s (%s, %s)\n", FormatCount(len(r.Differences), "difference"), r.Backend, r.Families)
	}
	for _, d := range r.Differences {
		fmt.Fprintf(&b, "  %s\n", d)
	}
	fmt.Fprintf(&b, "packets    %d of %d arrived as expected\n", r.Proven(), r.Proven()+len(r.Failed()))
	for _, p := range r.Proofs {
		switch {
		case p.Unproven != "":
		case !p.OK:
			fmt.Fprintf(&b, "  WRONG  %s\n         expected %s, got %s%s\n", p.Consequence, p.Want, p.Got, ruleSuffix(p.Rule))
		case all:
			fmt.Fprintf(&b, "  ok     %s → %s%s\n", p.Subject, p.Got, ruleSuffix(p.Rule))
		}
	}
	for _, n := range r.Notes {
		fmt.Fprintf(&b, "note       %s\n", n)
	}
	for _, u := range r.Unproven {
		fmt.Fprintf(&b, "unproven   %s\n", u)
	}
	return b.String()
}

func ruleSuffix(rule string) string {
	if rule == "" {
		return ""
	}
	return " (" + rule + ")"
}

// FormatCount returns the number and the noun: "1 packet", "2 packets".
func FormatCount(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
