package sds

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"testing"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/testpki"
)

// Old bundles contain a root with a negative serial number, which Envoy accepts. The other roots are served, too.
func TestNegativeSerialNumberDoesNotAffectOtherRoots(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	serial := []byte{0x7f, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: new(big.Int).SetBytes(serial), Subject: pkix.Name{CommonName: "old"}, NotAfter: time.Now().Add(time.Hour),
	}, &x509.Certificate{}, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	at := bytes.Index(der, serial)
	der[at] = 0xff
	old := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	roots, err := parseCertificates(append(old, testpki.New(t, "root").PEM()...))
	if err != nil || len(roots) != 2 || roots[0].SerialNumber.Sign() >= 0 {
		t.Errorf("%d roots, %v", len(roots), err)
	}
}
