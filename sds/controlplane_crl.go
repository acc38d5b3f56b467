package sds

import (
	"bytes"
	"crypto/x509"
	"fmt"
	"slices"
	"time"
)

// deniedLists contains the certificate revocation lists (CRLs) that the control plane sent. The zero value contains
// none. A deniedLists is immutable.
type deniedLists struct {
	text  []byte // PEM
	lists []*x509.RevocationList
	// roots are the roots that the lists cover completely: every CA below them has a list.
	roots []*x509.Certificate
}

// SetRevocationLists replaces the CRLs (PEM) that the control plane sent. The server sends them to Envoy with the
// workload's roots. roots (PEM) are the roots that the lists cover completely. Empty lists remove the previous ones. If
// the input is malformed, it returns an error and changes nothing. Safe for concurrent use.
func (s *Server) SetRevocationLists(lists, roots []byte) error {
	next := deniedLists{}
	if len(lists) > 0 {
		var err error
		if next.lists, err = parseRevocations(lists); err != nil {
			return fmt.Errorf("sds: parsing the control plane's revocation lists: %w", err)
		}
		if next.roots, err = parseCertificates(roots); err != nil {
			return fmt.Errorf("sds: parsing the roots of the control plane's revocation lists: %w", err)
		}
		next.text = lists
	}
	s.secrets.setDenied(next)
	return nil
}

// setDenied stores the control plane's lists. If they differ from the previous lists, it notifies the streams.
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
	s.log.Info("the control plane sent new revocation lists", "lists", len(next.lists), "serials", serials)
	s.invalidate()
}

// findUncovered returns the first unexpired root for which neither d nor others has a list, or nil. Once Envoy has any
// list, it rejects all certificates of a CA without a list.
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

// addDenied returns the lists to send with roots: the lists of the CRL file and, if every root has a list, the lists of
// the control plane. If it omits the latter, s.denyProblem states why; otherwise s.denyProblem is empty. leafOnly is
// true if only the control plane's lists are sent. These may lack lists for intermediate CAs, so Envoy must check only
// the leaf certificate. The caller holds s.mu.
func (s *store) addDenied(roots []byte) (lists []byte, leafOnly bool) {
	lists = s.extras.revoked.text
	problem := ""
	if len(s.denied.text) > 0 {
		switch root, err := s.denied.findUncovered(roots, s.extras.revoked, s.clock.Now()); {
		case err != nil:
			problem = fmt.Sprintf("certificates that the control plane revoked are still accepted: %v", err)
		case root != nil:
			problem = fmt.Sprintf("certificates that the control plane revoked are still accepted, because the root %s (serial %s) has no revocation list, "+
				"and Envoy would reject all certificates of that root: add its list to the file %s", root.Subject, root.SerialNumber.Text(16), s.crlFile)
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
