package sds

import (
	"bytes"
	"crypto/x509"
	"fmt"
	"slices"
	"time"
)

// deniedLists contains the CRLs that the control plane sends. The zero value denies nothing. Immutable.
type deniedLists struct {
	text  []byte // PEM
	lists []*x509.RevocationList
	// roots are those for which the lists are complete: every CA below them has a list.
	roots []*x509.Certificate
}

// SetRevocationLists replaces the control plane's revocation lists (PEM), which are served with the workload's roots.
// roots are those for which the lists are complete. With empty lists, none are served. Malformed input returns an error
// and changes nothing. Safe for concurrent use.
func (s *Server) SetRevocationLists(lists, roots []byte) error {
	next := deniedLists{}
	if len(lists) > 0 {
		var err error
		if next.lists, err = parseRevocations(lists); err != nil {
			return fmt.Errorf("sds: revocation lists of the control plane: %w", err)
		}
		if next.roots, err = parseCertificates(roots); err != nil {
			return fmt.Errorf("sds: roots of the revocation lists of the control plane: %w", err)
		}
		next.text = lists
	}
	s.secrets.setDenied(next)
	return nil
}

// setDenied applies the control plane's lists.
func (s *store) setDenied(next deniedLists) {
	s.mu.Lock()
	same := bytes.Equal(next.text, s.denied.text) && slices.EqualFunc(next.roots, s.denied.roots, (*x509.Certificate).Equal)
	s.denied = next
	s.mu.Unlock()
	if same {
		return
	}
	serials := 0
	for _, list := range next.lists {
		serials = max(serials, len(list.RevokedCertificateEntries))
	}
	s.log.Info("revocation lists of the control plane", "lists", len(next.lists), "serials", serials)
	s.invalidate()
}

// findUncovered returns a root without a list in d or in others, or nil. Once Envoy has any list, it rejects all
// certificates of a CA without one.
func (d deniedLists) findUncovered(roots []byte, others revocations, now time.Time) (*x509.Certificate, error) {
	certs, err := parseCertificates(roots)
	if err != nil {
		return nil, err
	}
	for _, cert := range certs {
		signed := func(list *x509.RevocationList) bool { return list.CheckSignatureFrom(cert) == nil }
		if !containsCert(d.roots, cert) && !now.After(cert.NotAfter) && !slices.ContainsFunc(d.lists, signed) && !slices.ContainsFunc(others.lists, signed) {
			return cert, nil
		}
	}
	return nil, nil
}

// addDenied returns the lists to serve with roots: those of the CRL file, and those of the control plane if they cover
// all roots. leafOnly reports whether the lists are complete only for the CAs of workload certificates. The caller
// holds s.mu.
func (s *store) addDenied(roots []byte) (lists []byte, leafOnly bool) {
	lists = s.extras.revoked.text
	problem := ""
	if len(s.denied.text) > 0 {
		switch root, err := s.denied.findUncovered(roots, s.extras.revoked, s.clock.Now()); {
		case err != nil:
			problem = fmt.Sprintf("the certificates that the control plane denies are accepted: %v", err)
		case root != nil:
			problem = fmt.Sprintf("the certificates that the control plane denies are accepted, because there is no revocation list of the root %s "+
				"(serial %s), whose certificates Envoy would all refuse: add its list to the file %s", root.Subject, root.SerialNumber.Text(16), s.crlFile)
		default:
			leafOnly = len(lists) == 0
			lists = slices.Concat(lists, s.denied.text)
		}
	}
	if problem != "" && problem != s.denyProblem {
		s.log.Warn(problem)
	}
	s.denyProblem = problem
	return lists, leafOnly
}
