package ca

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/pem"
	"math/big"
	"slices"
	"strings"
	"testing"
)

func ecKey(t testing.TB, curve elliptic.Curve) crypto.Signer {
	t.Helper()
	key, err := ecdsa.GenerateKey(curve, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func rsaKey(t testing.TB, bits int) crypto.Signer {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, bits)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func TestStrongKeysAreAcceptedAndWeakOnesRefused(t *testing.T) {
	_, edwards, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		key    crypto.Signer
		refuse string
	}{
		"RSA 2048": {rsaKey(t, 2048), ""},
		"RSA 1024": {rsaKey(t, 1024), "1024 bits is not accepted"},
		"P-224":    {ecKey(t, elliptic.P224()), "P-224 is not accepted"},
		"P-256":    {ecKey(t, elliptic.P256()), ""},
		"P-384":    {ecKey(t, elliptic.P384()), ""},
		"P-521":    {ecKey(t, elliptic.P521()), ""},
		"Ed25519":  {edwards, "ed25519.PublicKey is not accepted"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := parseCSR(newCSR(t, c.key))
			if c.refuse == "" && err != nil {
				t.Error(err)
			}
			if c.refuse != "" {
				wantError(t, err, c.refuse)
			}
		})
	}
}

func TestHugeKeyIsRefusedBeforeVerification(t *testing.T) {
	huge := &rsa.PublicKey{N: new(big.Int).Lsh(big.NewInt(1), 16383), E: 65537}
	wantError(t, checkKey(huge), "16384 bits is not accepted")
}

func TestMalformedRequestsAreRefused(t *testing.T) {
	good := newCSR(t, newKey(t), "spiffe://td/ns/a/sa/b")
	block, _ := pem.Decode([]byte(good))
	forged := slices.Clone(block.Bytes)
	forged[len(forged)-1] ^= 1
	// The signature covers the names.
	renamed := []byte(strings.Replace(string(block.Bytes), "/sa/b", "/sa/c", 1))
	encode := func(blockType string, der []byte) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: blockType, Bytes: der}))
	}
	for name, c := range map[string]struct{ csr, want string }{
		"empty":          {"", "no PEM block"},
		"no PEM":         {string(block.Bytes), "no PEM block"},
		"another block":  {encode("CERTIFICATE", block.Bytes), "not a CERTIFICATE REQUEST"},
		"two requests":   {good + good, "more than one PEM block"},
		"cut":            {encode("CERTIFICATE REQUEST", block.Bytes[:40]), "CSR"},
		"trailing bytes": {encode("CERTIFICATE REQUEST", append(slices.Clone(block.Bytes), 0)), "trailing"},
		"forged":         {encode("CERTIFICATE REQUEST", forged), "CSR"},
		"renamed":        {encode("CERTIFICATE REQUEST", renamed), "signature"},
		"too large":      {good + strings.Repeat(" ", maxCSR), "at most"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := parseCSR(c.csr)
			wantError(t, err, c.want)
		})
	}
}

func TestRequestForAnotherNameIsRefused(t *testing.T) {
	caller := Identity{"td", "a", "b"}
	own := caller.SPIFFEID()
	for name, c := range map[string]struct {
		names   []string
		foreign string
	}{
		"none":                {nil, ""},
		"own":                 {[]string{own}, ""},
		"own twice":           {[]string{own, own}, ""},
		"another account":     {[]string{"spiffe://td/ns/a/sa/c"}, "spiffe://td/ns/a/sa/c"},
		"another namespace":   {[]string{"spiffe://td/ns/c/sa/b"}, "spiffe://td/ns/c/sa/b"},
		"another domain":      {[]string{"spiffe://x/ns/a/sa/b"}, "spiffe://x/ns/a/sa/b"},
		"own and another's":   {[]string{own, "spiffe://td/ns/a/sa/c"}, "spiffe://td/ns/a/sa/c"},
		"own and a DNS name":  {[]string{own, "istiod.istio-system.svc"}, "istiod.istio-system.svc"},
		"own and an address":  {[]string{own, "127.0.0.1"}, "127.0.0.1"},
		"own and an e-mail":   {[]string{own, "a@b.example"}, "a@b.example"},
		"own in other case":   {[]string{"spiffe://td/ns/A/sa/b"}, "spiffe://td/ns/A/sa/b"},
		"own, percent-coded":  {[]string{"spiffe://td/ns/%61/sa/b"}, "spiffe://td/ns/%61/sa/b"},
		"own, with a query":   {[]string{own + "?x"}, own + "?x"},
		"own, as a directory": {[]string{own + "/"}, own + "/"},
	} {
		t.Run(name, func(t *testing.T) {
			csr, err := parseCSR(newCSR(t, newKey(t), c.names...))
			if err != nil {
				t.Fatal(err)
			}
			if got := foreignName(csr, caller); got != c.foreign {
				t.Errorf("the first name that is not the client's own is %q; want %q", got, c.foreign)
			}
		})
	}
}

func FuzzParseCSR(f *testing.F) {
	key := newKey(f)
	f.Add(newCSR(f, key, "spiffe://td/ns/a/sa/b"))
	f.Add(newCSR(f, key, "spiffe://td/ns/a/sa/b", "a.example", "127.0.0.1", "a@b.example"))
	f.Add(newCSR(f, key))
	f.Add("-----BEGIN CERTIFICATE REQUEST-----\n-----END CERTIFICATE REQUEST-----\n")
	f.Fuzz(func(t *testing.T, text string) {
		csr, err := parseCSR(text)
		if err != nil {
			return
		}
		if err := csr.CheckSignature(); err != nil {
			t.Errorf("a request with a bad signature was accepted: %v", err)
		}
		if err := checkKey(csr.PublicKey); err != nil {
			t.Errorf("a request with a weak key was accepted: %v", err)
		}
		if name := foreignName(csr, Identity{"td", "a", "b"}); name == "" && len(csr.DNSNames)+len(csr.IPAddresses) > 0 {
			t.Error("a request for other names was accepted")
		}
	})
}
