package ca

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"slices"
	"strings"
	"testing"
)

func TestInvalidDenyListIsRefused(t *testing.T) {
	for text, want := range map[string]struct {
		accounts, serials int
		err               string
	}{
		"":                                      {},
		"# nothing\n":                           {},
		"accounts: []\nserials:\n":              {},
		"accounts: [shop/crawler, a/b]":         {accounts: 2},
		"serials: [10, 1e5, \"0A:1b\", 0x0a1b]": {serials: 3},
		"accounts: [spiffe://cluster.local/ns/shop/sa/x]\nserials: [ff]": {accounts: 1, serials: 1},
		"accounts: [spiffe://elsewhere/ns/shop/sa/x]":                    {err: "trust domain"},
		"accounts: [crawler]":            {err: "accounts[0]"},
		"accounts: [shop/a/b]":           {err: "accounts[0]"},
		"accounts: [shop/x, \"/\"]":      {err: "accounts[1]"},
		"accounts: shop/crawler":         {err: "accounts"},
		"acounts: [shop/crawler]":        {err: "acounts"},
		"serials: [xyz]":                 {err: "serials[0]"},
		"serials: [0]":                   {err: "serials[0]"},
		"serials: [-1]":                  {err: "serials[0]"},
		"serials: [[1]]":                 {err: "serials[0]"},
		"{":                              {err: "lists accounts and serials"},
		"- shop/crawler":                 {err: "lists accounts and serials"},
		"serials: [\"" + longHex + "\"]": {err: "serials[0]"},
	} {
		list, err := ParseDenyList([]byte(text), "cluster.local")
		if want.err != "" {
			if err == nil || !strings.Contains(err.Error(), want.err) {
				t.Errorf("%q: %v, want an error about %s", text, err, want.err)
			}
			continue
		}
		if accounts, serials := list.Len(); err != nil || accounts != want.accounts || serials != want.serials {
			t.Errorf("%q: %d accounts, %d serials, %v", text, accounts, serials, err)
		}
	}
}

var longHex = strings.Repeat("f", 65)

func TestRevocationListHasTheDeniedSerials(t *testing.T) {
	a, err := Load(t.TempDir(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := a.signWorkload(Identity{TrustDomain: a.TrustDomain(), Namespace: "shop", ServiceAccount: "x"}, key.Public(), 0)
	if err != nil {
		t.Fatal(err)
	}
	for name, list := range map[string]*DenyList{"none": nil, "one": {serials: map[string]bool{cert.SerialNumber.Text(16): true}}} {
		a.Deny(list)
		text, err := a.RevocationLists(nil)
		if err != nil {
			t.Fatal(err)
		}
		block, rest := pem.Decode(text)
		if block == nil || len(rest) != 0 {
			t.Fatalf("%s: %s", name, text)
		}
		crl, err := x509.ParseRevocationList(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		if err := crl.CheckSignatureFrom(a.signing().issuer.cert); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		var serials []*big.Int
		for _, e := range crl.RevokedCertificateEntries {
			serials = append(serials, e.SerialNumber)
		}
		if _, want := list.Len(); len(serials) != want || want == 1 && serials[0].Cmp(cert.SerialNumber) != 0 {
			t.Errorf("%s: the revocation list contains %v", name, serials)
		}
	}
}

// Correct lists are not signed again, so a restart of the control plane does not cause an update of the proxies.
// During a rotation each root whose certificates may be in use has a list: a root receives its list before it signs
// certificates, and retains the list after its key is removed.
func TestRevocationListsFollowTheRoots(t *testing.T) {
	a, err := Load(t.TempDir(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	a.Deny(&DenyList{serials: map[string]bool{"10": true, "f": true}})
	var text []byte
	lists := func() []*x509.RevocationList {
		t.Helper()
		next, err := a.RevocationLists(text)
		if err != nil {
			t.Fatal(err)
		}
		again, err := a.RevocationLists(next)
		if err != nil || string(again) != string(next) {
			t.Errorf("the lists are signed again: %v", err)
		}
		text = next
		return parseLists(next)
	}
	check := func(what string, want ...*x509.Certificate) {
		t.Helper()
		got := lists()
		if len(got) != len(want) {
			t.Fatalf("%s: %d revocation lists, want %d", what, len(got), len(want))
		}
		for i, root := range want {
			if !slices.ContainsFunc(got, func(l *x509.RevocationList) bool { return l.CheckSignatureFrom(root) == nil }) {
				t.Errorf("%s: root %d has no revocation list", what, i)
			}
		}
	}
	step := func(want RotationStep) {
		t.Helper()
		if took, err := a.Rotate(true); err != nil || took != want {
			t.Fatalf("%s: took %s, %v", want, took, err)
		}
	}
	old := a.signing().issuer.cert
	check("at first", old)
	step(Announce)
	next := a.signing().next.cert
	check("announced", old, next)
	step(Activate)
	check("active", old, next)
	step(Retire)
	check("the old key was removed", old, next)

	a.Deny(&DenyList{serials: map[string]bool{"11": true}})
	for _, l := range lists() {
		if signed := l.CheckSignatureFrom(next) == nil; signed != (len(l.RevokedCertificateEntries) == 1) {
			t.Errorf("a revocation list has %d serials; signed by the new root: %v", len(l.RevokedCertificateEntries), signed)
		}
	}
	text = []byte("no lists")
	check("the file is damaged", next)
}
