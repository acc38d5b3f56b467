package ca

import (
	"crypto/ecdsa"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"

	"github.com/go-jose/go-jose/v4"
)

func unmarshalKeys(text string, keys *jose.JSONWebKeySet) error {
	if err := json.Unmarshal([]byte(text), keys); err != nil {
		return fmt.Errorf("the issuer's keys are not a JWK set: %w", err)
	}
	return nil
}

// AuditFile returns an audit log that is appended to the file path. For each certificate that was issued or refused to
// an authenticated client, the file contains one line of JSON without secrets. For refusals of other clients, it
// contains at most one line per minute. The caller must call the returned function to close the file.
func AuditFile(path string) (*slog.Logger, func() error, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, nil, fmt.Errorf("opening the certificate authority's audit log: %w", err)
	}
	return slog.New(slog.NewJSONHandler(f, nil)), f.Close, nil
}

// logIssued records an issued certificate in the audit log.
func (a *Authority) logIssued(address, proof string, caller Identity, cert *x509.Certificate) {
	sum := sha256.Sum256(cert.Raw)
	a.opts.Audit.Info("issued", "identity", caller.SPIFFEID(), "provedBy", proof, "address", address,
		"serial", cert.SerialNumber.Text(16), "sha256", hex.EncodeToString(sum[:]), "key", keyName(cert.PublicKey),
		"notBefore", cert.NotBefore.UTC(), "notAfter", cert.NotAfter.UTC(), "issuer", cert.Issuer.String())
}

// logRefused records in the audit log that a request of the authenticated client caller was refused.
func (a *Authority) logRefused(address, caller, reason string) {
	a.opts.Audit.Warn("refused", "identity", caller, "address", address, "reason", reason)
}

func keyName(key any) string {
	switch key := key.(type) {
	case *rsa.PublicKey:
		return fmt.Sprintf("RSA-%d", key.N.BitLen())
	case *ecdsa.PublicKey:
		return "ECDSA-" + key.Params().Name
	}
	return fmt.Sprintf("%T", key)
}
