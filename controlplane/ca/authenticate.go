package ca

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

var (
	errNoCertificate = errors.New("no client certificate")
	errNoToken       = errors.New("no token")
)

// Authenticate identifies the client of a gRPC call by its TLS client certificate, or otherwise by the Bearer token in
// the call's metadata. An error is a gRPC status that contains the reason. Its code is Unauthenticated, or Unavailable if the
// token cannot be verified at the moment.
func (a *Authority) Authenticate(ctx context.Context) (Identity, error) {
	id, _, err := a.authenticate(ctx)
	return id, err
}

// authenticate is like Authenticate. proof describes the credential that identified the client, for the audit log.
func (a *Authority) authenticate(ctx context.Context) (id Identity, proof string, err error) {
	id, certErr := a.byCertificate(ctx)
	if certErr == nil {
		return id, "certificate", nil
	}
	id, proof, tokenErr := a.byToken(ctx)
	if tokenErr == nil {
		return id, proof, nil
	}
	code := codes.Unauthenticated
	if errors.Is(tokenErr, ErrUnavailable) {
		code = codes.Unavailable
	}
	return Identity{}, "", status.Error(code, missingCredentialReason(certErr, tokenErr))
}

func missingCredentialReason(certErr, tokenErr error) string {
	switch {
	case !errors.Is(tokenErr, errNoToken):
		return tokenErr.Error()
	case !errors.Is(certErr, errNoCertificate):
		return certErr.Error()
	}
	return "the client is not authenticated: send a token in the metadata (authorization: Bearer …), or use a client certificate"
}

// byCertificate identifies the client by the certificate that the TLS handshake verified.
func (a *Authority) byCertificate(ctx context.Context) (Identity, error) {
	cert := clientCertificate(ctx)
	if cert == nil {
		return Identity{}, errNoCertificate
	}
	return a.IdentityOf(cert)
}

// IdentityOf returns the identity in a client certificate that a TLS handshake verified. It returns an error if the
// certificate has expired, has no identity in the trust domain, or is denied.
func (a *Authority) IdentityOf(cert *x509.Certificate) (Identity, error) {
	// A connection may stay open after its client certificate has expired, and TLS does not verify the certificate
	// again.
	if now := a.now(); now.After(cert.NotAfter) {
		return Identity{}, fmt.Errorf("the client certificate expired at %s: connect again with a new certificate", cert.NotAfter.Format(time.RFC3339))
	}
	if len(cert.URIs) != 1 {
		return Identity{}, fmt.Errorf("the client certificate has %d URIs; it must have exactly one, a SPIFFE ID", len(cert.URIs))
	}
	id, err := ParseSPIFFEID(cert.URIs[0].String())
	if err != nil {
		return Identity{}, fmt.Errorf("reading the identity in the client certificate: %w", err)
	}
	if id.TrustDomain != a.trustDomain {
		return Identity{}, fmt.Errorf("the client certificate is for %s, which is not in trust domain %s", id, a.trustDomain)
	}
	list := a.denied.Load()
	if err := list.checkCertificate(cert); err != nil {
		return Identity{}, err
	}
	return id, list.checkAccount(id)
}

func (a *Authority) byToken(ctx context.Context) (id Identity, proof string, err error) {
	md, _ := metadata.FromIncomingContext(ctx)
	token := ""
	for _, value := range md.Get("authorization") {
		scheme, rest, ok := strings.Cut(value, " ")
		if !ok || !strings.EqualFold(scheme, "Bearer") {
			continue
		}
		if token != "" {
			return Identity{}, "", errors.New("the metadata contains more than one token")
		}
		token = strings.TrimSpace(rest)
	}
	if token == "" {
		return Identity{}, "", errNoToken
	}
	return a.identifyToken(ctx, token)
}
