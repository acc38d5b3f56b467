package hostile

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

func useDeniedIdentity(t *testing.T) {
	dir := t.TempDir()
	list := dir + "/deny.yaml"
	write := func(text string) {
		if err := os.WriteFile(list+".new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(list+".new", list); err != nil {
			t.Fatal(err)
		}
	}
	write("")
	p := startPlane(t, groups, "--deny-list", list)
	thief, one, two := p.mustCertify(t, "shop", "crawler"), p.mustCertify(t, "shop", "payments"), p.mustCertify(t, "shop", "payments")
	crawlerToken := p.token(t, "shop", "crawler")
	open := func(c *caller) interface{ Recv() error } {
		stream, _, err := sidecar("shop").stream(withToken(t, ""), t, p.dial(t, c.tls), clusterType)
		if err != nil {
			t.Fatal(err)
		}
		return receiver(func() error { _, err := stream.Recv(); return err })
	}
	ofThief, ofOne, ofTwo := open(thief), open(one), open(two)
	ended := make(chan error, 1)
	go func() { ended <- ofTwo.Recv() }()

	text := fmt.Sprintf("accounts: [shop/crawler]\nserials: [%s]\n", one.cert.SerialNumber.Text(16))
	delays := []time.Duration{p.denyDelay(t, func() { write(text) })}
	for name, stream := range map[string]interface{ Recv() error }{"the denied account": ofThief, "the denied certificate": ofOne} {
		if err := stream.Recv(); status.Code(err) != codes.PermissionDenied {
			t.Errorf("the stream of %s ended with %v", name, err)
		}
	}
	p.wantRefused(withToken(t, ""), t, "the certificate of a denied account", thief.tls)
	p.wantRefused(withToken(t, crawlerToken), t, "the token of a denied account")
	p.wantRefused(withToken(t, crawlerToken), t, "both", thief.tls)
	p.wantRefused(withToken(t, ""), t, "a denied certificate", one.tls)
	if _, err := certify(withToken(t, ""), t, p.dial(t, two.tls), 0); err != nil {
		t.Errorf("another certificate of the account is refused: %v", err)
	}
	testenv.Eventually(t, "the revocation list has the denied serial", func() error {
		text, err := os.ReadFile(p.path("state/ca-crl.pem"))
		if err != nil {
			return err
		}
		block, _ := pem.Decode(text)
		crl, err := x509.ParseRevocationList(block.Bytes)
		if err == nil && (len(crl.RevokedCertificateEntries) != 1 || crl.RevokedCertificateEntries[0].SerialNumber.Cmp(one.cert.SerialNumber) != 0) {
			err = fmt.Errorf("it has %v", crl.RevokedCertificateEntries)
		}
		return err
	})
	select {
	case err := <-ended:
		t.Errorf("the stream of another certificate ended: %v", err)
	default:
	}
	p.mustCertify(t, "shop", "payments")
	for i := range 4 {
		delays = append(delays, p.denyDelay(t, func() { write(fmt.Sprintf("accounts: [shop/crawler, shop/other%d]\n", i)) }))
	}
	slices.Sort(delays)
	t.Logf("an edit is in force after %v", delays)
	// A busy machine can stop any process for longer, so that a single edit may need more.
	if second := delays[len(delays)-2]; second > time.Second {
		t.Errorf("edits are in force after %v, want 1 s at most for all but one", delays)
	}
}

// denyDelay edits the deny list and returns how long the control plane needed, by its log, to refuse what the list names
// and to end its streams. The log's resolution is a millisecond.
func (p *plane) denyDelay(t *testing.T, edit func()) (delay time.Duration) {
	t.Helper()
	lines := func() []string { return appliedLists.FindAllString(p.output.String(), -1) }
	before := len(lines())
	start := time.Now().Truncate(time.Millisecond)
	edit()
	testenv.Eventually(t, "the edit is in force", func() error {
		applied := lines()
		if len(applied) != before+1 {
			return fmt.Errorf("%d lists were applied after %d", len(applied), before)
		}
		at, err := time.Parse(time.RFC3339Nano, appliedLists.FindStringSubmatch(applied[before])[1])
		delay = at.Sub(start)
		return err
	})
	return delay
}

// appliedLists matches the log's lines about deny lists in force. The group is the time.
var appliedLists = regexp.MustCompile(`time=(\S+) level=INFO msg="applied the deny list"`)

// receiver is the receiving half of a stream.
type receiver func() error

func (r receiver) Recv() error { return r() }

func outliveDenyList(t *testing.T) {
	list := t.TempDir() + "/deny.yaml"
	write := func(text string) {
		if err := os.WriteFile(list, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("accounts: [shop/crawler]\n")
	p := startPlane(t, groups, "--deny-list", list)
	denied := p.token(t, "shop", "crawler")
	for _, broken := range []string{"accounts: shop/crawler\n", "acounts: []\n", "accounts: [crawler]\n", "serials: [xyz]\n", "{"} {
		before := strings.Count(p.output.String(), "reading the deny list failed")
		write(broken)
		testenv.Eventually(t, "the error is logged", func() error {
			if strings.Count(p.output.String(), "reading the deny list failed") <= before {
				return fmt.Errorf("no message about %q", broken)
			}
			return nil
		})
		p.wantRefused(withToken(t, denied), t, fmt.Sprintf("with the list %q", broken))
	}
	if err := os.Remove(list); err != nil {
		t.Fatal(err)
	}
	p.wantRefused(withToken(t, denied), t, "without the list")
	p.mustCertify(t, "shop", "payments")
}
