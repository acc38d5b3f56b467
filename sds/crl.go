package sds

import (
	"bytes"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/pemtext"
)

// revocations contains certificate revocation lists (CRLs).
type revocations struct {
	text  []byte // PEM
	lists []*x509.RevocationList
	// problem is the last read error. The other fields then have their previous content.
	problem string
}

// readRevocations reads a CRL file. A missing file yields no lists; an empty one yields errEmpty.
func readRevocations(path string) (revocations, error) {
	text, err := readBounded(path)
	if errors.Is(err, fs.ErrNotExist) {
		return revocations{}, nil
	}
	if err != nil {
		return revocations{}, err
	}
	lists, err := parseRevocations(text)
	if err != nil {
		return revocations{}, fmt.Errorf("%s: %w", path, err)
	}
	return revocations{text: text, lists: lists}, nil
}

func parseRevocations(text []byte) ([]*x509.RevocationList, error) {
	blocks, err := pemtext.Blocks(text)
	if err != nil {
		return nil, err
	}
	var lists []*x509.RevocationList
	for _, block := range blocks {
		if block.Type != "X509 CRL" {
			continue
		}
		list, err := x509.ParseRevocationList(block.Bytes)
		if err != nil {
			return nil, err
		}
		lists = append(lists, list)
	}
	if len(lists) == 0 {
		return nil, errors.New("it contains no PEM revocation list (X509 CRL)")
	}
	return lists, nil
}

// textForRoots returns the PEM text of all lists if at least one list is from an issuer in roots. Otherwise it returns
// nil, because Envoy rejects the certificates of every CA without a list once it has any list.
func (r revocations) textForRoots(roots []byte) ([]byte, error) {
	if len(r.lists) == 0 {
		return nil, nil
	}
	certs, err := parseCertificates(roots)
	if err != nil {
		return nil, err
	}
	for _, list := range r.lists {
		for _, cert := range certs {
			if bytes.Equal(list.RawIssuer, cert.RawSubject) {
				return r.text, nil
			}
		}
	}
	return nil, nil
}

// isInForce reports whether there is at least one list and no list has expired.
func (r revocations) isInForce(now time.Time) bool {
	return len(r.lists) > 0 && r.findExpired(now) == nil
}

// findExpired returns the first expired list, or nil.
func (r revocations) findExpired(now time.Time) *x509.RevocationList {
	for _, list := range r.lists {
		if !list.NextUpdate.IsZero() && now.After(list.NextUpdate) {
			return list
		}
	}
	return nil
}

// describeProblem returns the read error, names an expired list, or returns "". If a list has expired, Envoy rejects
// every certificate of the list's CA.
func (r revocations) describeProblem(path string, now time.Time) string {
	if r.problem != "" {
		return fmt.Sprintf("the revocation lists cannot be read; the %d previous lists remain in force: %s", len(r.lists), r.problem)
	}
	if list := r.findExpired(now); list != nil {
		return fmt.Sprintf("the revocation list of %[2]s in %[1]s expired at %[3]s, so Envoy rejects all certificates of that authority: replace the list",
			path, list.Issuer, list.NextUpdate.UTC().Format(time.RFC3339))
	}
	return ""
}
