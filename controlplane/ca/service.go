package ca

import (
	"context"
	"crypto/x509"
	"log/slog"
	"math"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	securityv1 "istio.io/api/security/v1alpha1"
)

// RegisterTo adds the certificate service to a gRPC server. It belongs on a port with TLS only: a token that is sent in the
// clear is anyone's.
func (a *Authority) RegisterTo(s grpc.ServiceRegistrar) {
	securityv1.RegisterIstioCertificateServiceServer(s, a)
}

// CreateCertificate signs the caller's key for the caller's own SPIFFE ID, and for no other. The answer's chain is the
// certificate, then the root.
func (a *Authority) CreateCertificate(
	ctx context.Context, req *securityv1.IstioCertificateRequest,
) (*securityv1.IstioCertificateResponse, error) {
	a.metrics.requests.Inc()
	log := a.log.With("address", peerAddress(ctx))
	caller, proof, err := a.authenticate(ctx)
	if err != nil {
		a.refused(peerAddress(ctx), "", status.Convert(err).Message())
		a.metrics.unauthenticated.Inc()
		log.Warn("a certificate was refused: the caller did not prove who it is", "reason", status.Convert(err).Message())
		return nil, err
	}
	log = log.With("caller", caller.SPIFFEID())
	csr, err := parseCSR(req.GetCsr())
	if err != nil {
		a.metrics.malformed.Inc()
		a.refused(peerAddress(ctx), caller.SPIFFEID(), err.Error())
		log.Warn("a certificate was refused: the request is no good", "reason", err)
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	if name := foreignName(csr, caller); name != "" {
		a.metrics.foreign.Inc()
		a.refused(peerAddress(ctx), caller.SPIFFEID(), "asked for "+name)
		log.Warn("a certificate was refused: the caller asked for another's identity", "requested", name)
		return nil, status.Errorf(codes.PermissionDenied, "%s may not have a certificate for %q", caller, name)
	}
	return a.signFor(ctx, caller, proof, csr, seconds(req.GetValidityDuration()), log)
}

func (a *Authority) signFor(
	ctx context.Context, caller Identity, proof string, csr *x509.CertificateRequest, ttl time.Duration, log *slog.Logger,
) (*securityv1.IstioCertificateResponse, error) {
	cert, err := a.signWorkload(caller, csr.PublicKey, ttl)
	if err != nil {
		a.metrics.failed.Inc()
		a.refused(peerAddress(ctx), caller.SPIFFEID(), err.Error())
		log.Error("a certificate could not be signed", "error", err)
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	a.metrics.signed.Inc()
	a.issued(peerAddress(ctx), proof, caller, cert)
	log.Debug("signed a certificate", "serial", cert.SerialNumber.Text(16), "notAfter", cert.NotAfter)
	chain := []string{string(encodeCertificate(cert))}
	by := a.signing()
	for _, c := range by.issuer.between {
		chain = append(chain, string(encodeCertificate(c)))
	}
	return &securityv1.IstioCertificateResponse{CertChain: append(chain, string(by.rootsPEM))}, nil
}

// seconds is a number of seconds as a duration; what a duration cannot hold is the longest.
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
