package ca

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

var (
	errNoCertificate = errors.New("no client certificate")
	errNoToken       = errors.New("no token")
)

// Authenticate finds out who makes a gRPC call: by the client certificate of its connection, or else by the Bearer token
// in its metadata. The error is a gRPC status, Unauthenticated, with the reason.
func (a *Authority) Authenticate(ctx context.Context) (Identity, error) {
	id, _, err := a.authenticate(ctx)
	return id, err
}

// authenticate also says what proved it.
func (a *Authority) authenticate(ctx context.Context) (id Identity, proof string, err error) {
	id, certErr := a.byCertificate(ctx)
	if certErr == nil {
		return id, "certificate", nil
	}
	id, proof, tokenErr := a.byToken(ctx)
	if tokenErr == nil {
		return id, proof, nil
	}
	return Identity{}, "", status.Error(codes.Unauthenticated, whyNot(certErr, tokenErr))
}

func whyNot(certErr, tokenErr error) string {
	switch {
	case !errors.Is(tokenErr, errNoToken):
		return tokenErr.Error()
	case !errors.Is(certErr, errNoCertificate):
		return certErr.Error()
	}
	return "the caller does not say who it is: send a token in the metadata (authorization: Bearer …), or use a client certificate"
}

// byCertificate takes the certificate that the TLS handshake verified.
func (a *Authority) byCertificate(ctx context.Context) (Identity, error) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return Identity{}, errNoCertificate
	}
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	if !ok || len(info.State.VerifiedChains) == 0 || len(info.State.VerifiedChains[0]) == 0 {
		return Identity{}, errNoCertificate
	}
	return a.identityOf(info.State.VerifiedChains[0][0])
}

func (a *Authority) identityOf(cert *x509.Certificate) (Identity, error) {
	// A connection may outlive the certificate that it was opened with, and nobody looks again.
	if now := a.now(); now.After(cert.NotAfter) {
		return Identity{}, fmt.Errorf("the client certificate expired at %s: connect again with a new one", cert.NotAfter.Format(time.RFC3339))
	}
	if len(cert.URIs) != 1 {
		return Identity{}, fmt.Errorf("the client certificate has %d URIs, and not one SPIFFE ID", len(cert.URIs))
	}
	id, err := ParseSPIFFEID(cert.URIs[0].String())
	if err != nil {
		return Identity{}, fmt.Errorf("the client certificate: %w", err)
	}
	if id.TrustDomain != a.trustDomain {
		return Identity{}, fmt.Errorf("the client certificate is for %s, which is not in trust domain %s", id, a.trustDomain)
	}
	return id, nil
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
			return Identity{}, "", errors.New("there is more than one token in the metadata")
		}
		token = strings.TrimSpace(rest)
	}
	if token == "" {
		return Identity{}, "", errNoToken
	}
	if issuer := a.issuerOf(token); issuer != nil {
		id, err = a.verifyForeign(issuer, token)
		return id, "token of " + issuer.Issuer, err
	}
	id, err = a.VerifyToken(token)
	return id, "token", err
}
