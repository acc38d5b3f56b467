package ca

import (
	"context"
	"crypto/x509"
	"log/slog"
	"math"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	securityv1 "istio.io/api/security/v1alpha1"
)

// refusalLogInterval is the minimum time between two log lines about unauthenticated clients.
const refusalLogInterval = time.Minute

// CreateCertificate issues a certificate for the key in the request's CSR and for the client's own SPIFFE ID. It
// refuses requests for other names. The response contains the certificate chain, followed by the root.
func (a *Authority) CreateCertificate(
	ctx context.Context, req *securityv1.IstioCertificateRequest,
) (*securityv1.IstioCertificateResponse, error) {
	caller, proof, err := a.authenticateCaller(ctx)
	if err != nil {
		return nil, err
	}
	return a.answerCall(ctx, caller, proof, req)
}

// authenticateCaller authenticates the client of CreateCertificate. It logs and counts a failure.
func (a *Authority) authenticateCaller(ctx context.Context) (caller Identity, proof string, err error) {
	a.metrics.requests.Inc()
	if caller, proof, err = a.authenticate(ctx); err != nil {
		reason := status.Convert(err).Message()
		a.metrics.unauthenticated.Inc()
		if unlogged, ok := a.refusals.Allow(a.now(), refusalLogInterval); ok {
			a.opts.Audit.Warn("refused", "identity", "", "address", peerAddress(ctx), "reason", reason, "suppressedLines", unlogged)
			a.log.Warn("refused a certificate request: the client is not authenticated", "address", peerAddress(ctx), "reason", reason, "suppressedLines", unlogged)
		}
	}
	return caller, proof, err
}

// answerCall processes the request of the authenticated client caller and returns the response.
func (a *Authority) answerCall(
	ctx context.Context, caller Identity, proof string, req *securityv1.IstioCertificateRequest,
) (*securityv1.IstioCertificateResponse, error) {
	log := a.log.With("address", peerAddress(ctx), "caller", caller.SPIFFEID())
	csr, err := parseCSR(req.GetCsr())
	if err != nil {
		a.metrics.malformed.Inc()
		a.logRefused(peerAddress(ctx), caller.SPIFFEID(), err.Error())
		log.Warn("refused a certificate request: the CSR is not acceptable", "reason", err)
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	if name := foreignName(csr, caller); name != "" {
		a.metrics.otherIdentity.Inc()
		a.logRefused(peerAddress(ctx), caller.SPIFFEID(), "requested "+name)
		log.Warn("refused a certificate request: the client requested another identity", "requestedIdentity", name)
		return nil, status.Errorf(codes.PermissionDenied, "the client is %s and cannot obtain a certificate for %q: request only the client's own SPIFFE ID", caller, name)
	}
	if life := seconds(req.GetValidityDuration()); life > a.opts.MaxTTL {
		log.Info("issued a certificate with a shorter lifetime than requested: raise --max-workload-cert-ttl to allow longer lifetimes", "requestedLifetime", life, "issuedLifetime", a.opts.MaxTTL)
	}
	return a.signFor(ctx, caller, proof, csr, seconds(req.GetValidityDuration()), log)
}

func (a *Authority) signFor(
	ctx context.Context, caller Identity, proof string, csr *x509.CertificateRequest, ttl time.Duration, log *slog.Logger,
) (*securityv1.IstioCertificateResponse, error) {
	cert, err := a.signWorkload(caller, csr.PublicKey, ttl)
	if err != nil {
		a.metrics.failed.Inc()
		a.logRefused(peerAddress(ctx), caller.SPIFFEID(), err.Error())
		log.Error("signing a certificate failed", "error", err)
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	a.metrics.signed.Inc()
	a.logIssued(peerAddress(ctx), proof, caller, cert)
	log.Debug("signed a certificate", "serial", cert.SerialNumber.Text(16), "notAfter", cert.NotAfter)
	chain := []string{string(encodeCertificate(cert))}
	by := a.signing()
	for _, c := range by.issuer.intermediates {
		chain = append(chain, string(encodeCertificate(c)))
	}
	return &securityv1.IstioCertificateResponse{CertChain: append(chain, string(by.rootsPEM))}, nil
}

// seconds converts n seconds to a duration. On overflow it returns the maximum duration, and 0 if n is negative.
func seconds(n int64) time.Duration {
	if n > int64(math.MaxInt64/time.Second) {
		return math.MaxInt64
	}
	return time.Duration(max(n, 0)) * time.Second
}

func peerAddress(ctx context.Context) string {
	if p, ok := peer.FromContext(ctx); ok && p.Addr != nil {
		return p.Addr.String()
	}
	return ""
}
