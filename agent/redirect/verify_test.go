package redirect

import (
	"testing"

	"github.com/pilotfish-mesh/pilotfish/internal/terminal"
	"github.com/pilotfish-mesh/pilotfish/iptables/verify"
)

func TestReportOfVerifyHasColoursOnTerminal(t *testing.T) {
	r := &verify.Report{
		Backend: "nftables",
		Proofs: []verify.Proof{
			{Subject: "tcp to 10.0.0.1:80", Got: "port 15001", OK: true},
			{Subject: "tcp to 10.0.0.2:80", Consequence: "traffic bypasses Envoy", Want: "port 15001", Got: "the network"},
		},
		Notes: []string{"ok is a word"}, Unproven: []string{"IPv6"},
	}
	const want = "rules      no differences (nftables, no address family)\n" +
		"packets    1 of 2 arrived as expected\n" +
		"  \x1b[32mok\x1b[0m     tcp to 10.0.0.1:80 → port 15001\n" +
		"  \x1b[31mWRONG\x1b[0m  traffic bypasses Envoy\n         expected port 15001, got the network\n" +
		"\x1b[2mnote\x1b[0m       ok is a word\n" +
		"\x1b[33munproven\x1b[0m   IPv6\n"
	if got := paintReport(terminal.Format{Colours: true}, r.Details()); got != want {
		t.Errorf("the report is\n%q\nnot\n%q", got, want)
	}
	if got := paintReport(terminal.Format{}, r.Details()); got != r.Details() {
		t.Errorf("without colours, the report is\n%s", got)
	}
}
