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

// revocations are lists of certificates that are not to be trusted any more.
type revocations struct {
	text  []byte // as PEM
	lists []*x509.RevocationList
	// problem is why the file could not be read last; the rest is then what it held before.
	problem string
}

// readRevocations reads a file of lists. One that is not there has none; one that is empty is an error, errEmpty.
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
		return nil, errors.New("no PEM revocation list (X509 CRL) in it")
	}
	return lists, nil
}

// of gives the lists when one of them is of one of the roots. Envoy, once it has any list, refuses certificates of all
// authorities that it has none of: others' roots must not get ours.
func (r revocations) of(roots []byte) ([]byte, error) {
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

// inForce says whether there are lists, none of which has ended.
func (r revocations) inForce(now time.Time) bool { return len(r.lists) > 0 && r.ended(now) == nil }

// ended is a list that is out of date, or nil.
func (r revocations) ended(now time.Time) *x509.RevocationList {
	for _, list := range r.lists {
		if !list.NextUpdate.IsZero() && now.After(list.NextUpdate) {
			return list
		}
	}
	return nil
}

// health tells of a list that is out of date: Envoy refuses every certificate then.
func (r revocations) health(path string, now time.Time) string {
	if r.problem != "" {
		return fmt.Sprintf("the revocation lists cannot be read, and the %d of before count: %s", len(r.lists), r.problem)
	}
	if list := r.ended(now); list != nil {
		return fmt.Sprintf("a revocation list in %s, of %s, has ended at %s: put its successor there, or no certificate of that authority is accepted",
			path, list.Issuer, list.NextUpdate.UTC().Format(time.RFC3339))
	}
	return ""
}
