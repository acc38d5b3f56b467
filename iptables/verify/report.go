package verify

import (
	"fmt"
	"strings"
	"time"

	"github.com/pilotfish-mesh/pilotfish/iptables"
)

// Report is what was found.
type Report struct {
	// Backend is the one that the rules were read back from.
	Backend string `json:"backend"`
	// Families are those whose traffic is looked at.
	Families iptables.Families `json:"families"`
	// Differences are between what should be in force and what the kernel has.
	Differences []iptables.Difference `json:"differences,omitempty"`
	// Proofs are the packets that were sent.
	Proofs []Proof `json:"proofs,omitempty"`
	// Notes are what a person ought to know although it is as the rules want it.
	Notes []string `json:"notes,omitempty"`
	// Unproven says what could not be shown with packets, and why.
	Unproven []string      `json:"unproven,omitempty"`
	Took     time.Duration `json:"took_ns"`

	foreign []iptables.ForeignChain
}

// OK tells that nothing is otherwise than it should be.
func (r *Report) OK() bool {
	return len(r.Differences) == 0 && len(r.Failed()) == 0
}

// Failed are the proofs that packets do not go where they should.
func (r *Report) Failed() (failed []Proof) {
	for _, p := range r.Proofs {
		if !p.OK && p.Unproven == "" {
			failed = append(failed, p)
		}
	}
	return failed
}

// Proven counts the packets that arrived where they should.
func (r *Report) Proven() (n int) {
	for _, p := range r.Proofs {
		if p.OK {
			n++
		}
	}
	return n
}

// Err says in one sentence or a few what is wrong; nil if nothing is.
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

// Mismatch is the error of a namespace whose redirection is not what it should be.
type Mismatch struct{ Findings []string }

// mostTold bounds what an error says; the report has it all.
const mostTold = 5

func (m *Mismatch) Error() string {
	told := m.Findings
	more := ""
	if len(told) > mostTold {
		more = fmt.Sprintf("; and %d more", len(told)-mostTold)
		told = told[:mostTold]
	}
	return "the redirection is not what it should be: " + strings.Join(told, "; ") + more
}

// String is the report for a person. What is as it should be is counted, unless all is wanted.
func (r *Report) String() string { return r.text(false) }

// Long is the report with every packet.
func (r *Report) Long() string { return r.text(true) }

func (r *Report) text(all bool) string {
	var b strings.Builder
	switch {
	case r.Backend == "":
		fmt.Fprintf(&b, "rules      were not read\n")
	case len(r.Differences) == 0:
		fmt.Fprintf(&b, "rules      as they should be, order included (%s, %s)\n", r.Backend, r.Families)
	default:
		fmt.Fprintf(&b, "rules      %s (%s, %s)\n", Count(len(r.Differences), "difference"), r.Backend, r.Families)
	}
	for _, d := range r.Differences {
		fmt.Fprintf(&b, "  %s\n", d)
	}
	fmt.Fprintf(&b, "packets    %d of %d arrived where they should\n", r.Proven(), r.Proven()+len(r.Failed()))
	for _, p := range r.Proofs {
		switch {
		case p.Unproven != "":
		case !p.OK:
			fmt.Fprintf(&b, "  WRONG  %s\n         want %s, got %s%s\n", p.Consequence, p.Want, p.Got, by(p.Rule))
		case all:
			fmt.Fprintf(&b, "  ok     %s → %s%s\n", p.Subject, p.Got, by(p.Rule))
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

func by(rule string) string {
	if rule == "" {
		return ""
	}
	return " (" + rule + ")"
}

// Count says how many there are of something.
func Count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
