package command

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/pilotfish-mesh/pilotfish/agent"
	"github.com/pilotfish-mesh/pilotfish/sds"
)

// The subject of a certificate may be chosen by an attacker. It must not contain control characters for the terminal.
func TestCertEscapesControlCharacters(t *testing.T) {
	t.Parallel()
	const foreign = "CN=a\x1b]0;title\a\r\nroot\t\u202ex\u009bé"
	const shown = `CN=a\u001b]0;title\u0007\r\nroot\t\u202ex\u009bé`
	r := agent.CertificateReport{OK: true, Reason: foreign, Remedy: foreign, Certificates: []sds.CertificateInfo{{
		Name: "file-root:" + foreign, Subject: foreign, Source: foreign, Chain: []sds.ChainLink{{Subject: foreign, Issuer: foreign}},
	}}}
	var out bytes.Buffer
	if err := printCertificates(&out, r, time.Now()); err != nil {
		t.Fatal(err)
	}
	if err := printCertificateDetails(&out, r); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(out.String(), shown); n != 9 {
		t.Errorf("the escaped subject is shown %d times:\n%q", n, out.String())
	}
	if strings.ContainsAny(out.String(), "\x1b\a\r\t\u202e\u009b") || strings.Count(out.String(), "\n") != 5 {
		t.Errorf("control characters reach the terminal:\n%q", out.String())
	}
}
