package ca

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/big"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// maxDenied limits the number of items of a deny list.
const maxDenied = 100_000

// DenyList contains the service accounts and certificates that the authority and the control plane refuse. It is
// immutable. A nil list denies nothing.
type DenyList struct {
	accounts map[string]bool // NAMESPACE/SERVICE-ACCOUNT
	serials  map[string]bool // lower-case hexadecimal numbers without leading zeros
}

// ParseDenyList parses a YAML document with two lists: accounts (NAMESPACE/SERVICE-ACCOUNT, or a SPIFFE ID of the trust
// domain) and serials (hexadecimal numbers, in the form that openssl and the audit log print). An empty document denies
// nothing.
func ParseDenyList(text []byte, trustDomain string) (*DenyList, error) {
	var document struct {
		Accounts []string    `yaml:"accounts"`
		Serials  []yaml.Node `yaml:"serials"`
	}
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	decoder.KnownFields(true)
	if err := decoder.Decode(&document); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("the file must contain only the lists accounts and serials, in YAML: %w", err)
	}
	if n := len(document.Accounts) + len(document.Serials); n > maxDenied {
		return nil, fmt.Errorf("the file has %d items; at most %d are allowed", n, maxDenied)
	}
	list := &DenyList{accounts: map[string]bool{}, serials: map[string]bool{}}
	for i, text := range document.Accounts {
		account, err := parseAccount(text, trustDomain)
		if err != nil {
			return nil, fmt.Errorf("accounts[%d] %q: %w", i, text, err)
		}
		list.accounts[account] = true
	}
	for i, node := range document.Serials {
		// Use the literal text, because YAML would interpret 10 and 1e5 as decimal numbers.
		serial, err := parseSerial(node.Value)
		if err != nil {
			return nil, fmt.Errorf("serials[%d] %q (line %d): %w", i, node.Value, node.Line, err)
		}
		list.serials[serial] = true
	}
	return list, nil
}

func parseAccount(text, trustDomain string) (string, error) {
	id := Identity{TrustDomain: trustDomain}
	if strings.HasPrefix(text, "spiffe://") {
		parsed, err := ParseSPIFFEID(text)
		if err != nil {
			return "", err
		}
		if parsed.TrustDomain != trustDomain {
			return "", fmt.Errorf("the SPIFFE ID is not in the trust domain %s", trustDomain)
		}
		id = parsed
	} else {
		var found bool
		if id.Namespace, id.ServiceAccount, found = strings.Cut(text, "/"); !found {
			return "", errors.New("write NAMESPACE/SERVICE-ACCOUNT, or a SPIFFE ID")
		}
	}
	if err := id.Validate(); err != nil {
		return "", err
	}
	return accountName(id), nil
}

func accountName(id Identity) string { return id.Namespace + "/" + id.ServiceAccount }

func parseSerial(text string) (string, error) {
	text = strings.TrimPrefix(strings.ToLower(strings.ReplaceAll(text, ":", "")), "0x")
	serial, ok := new(big.Int).SetString(text, 16)
	if !ok || serial.Sign() <= 0 || len(text) > 64 {
		return "", errors.New("write the certificate's serial number in hexadecimal digits")
	}
	return serial.Text(16), nil
}

// Len returns the number of denied accounts and serials.
func (l *DenyList) Len() (accounts, serials int) {
	if l == nil {
		return 0, 0
	}
	return len(l.accounts), len(l.serials)
}

// checkAccount returns an error if the account is denied.
func (l *DenyList) checkAccount(id Identity) error {
	if l != nil && l.accounts[accountName(id)] {
		return fmt.Errorf("%s is on the deny list of the control plane", id)
	}
	return nil
}

func (l *DenyList) checkCertificate(cert *x509.Certificate) error {
	if serial := cert.SerialNumber.Text(16); l != nil && l.serials[serial] {
		return fmt.Errorf("the client certificate with serial %s is on the deny list of the control plane", serial)
	}
	return nil
}

// Deny sets the deny list, which applies to new calls. The caller must check calls that have already begun by
// CheckCaller.
func (a *Authority) Deny(list *DenyList) { a.denied.Store(list) }

// Denied returns the current deny list, which may be nil.
func (a *Authority) Denied() *DenyList { return a.denied.Load() }

// CheckCaller returns a gRPC status error if the deny list contains id, an authenticated client, or the client
// certificate of the call with the context ctx.
func (a *Authority) CheckCaller(ctx context.Context, id Identity) error {
	list := a.denied.Load()
	err := list.checkAccount(id)
	if cert := clientCertificate(ctx); err == nil && cert != nil {
		err = list.checkCertificate(cert)
	}
	if err != nil {
		return status.Error(codes.PermissionDenied, err.Error())
	}
	return nil
}

// clientCertificate returns the verified client certificate of the call with the context ctx, or nil if the client has
// none.
func clientCertificate(ctx context.Context) *x509.Certificate {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return nil
	}
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	if !ok || len(info.State.VerifiedChains) == 0 || len(info.State.VerifiedChains[0]) == 0 {
		return nil
	}
	return info.State.VerifiedChains[0][0]
}

// maxRetained limits the number of revocation lists of replaced CAs that are retained.
const maxRetained = 4

// RevocationLists returns the denied serials as PEM revocation lists, one for each CA that may have signed the
// certificates. The lists may be empty, because a proxy that checks lists rejects the certificates of a CA for which it
// has no list.
//
// previous is the last result, or nil. RevocationLists reuses the lists in previous that are still correct. This
// includes lists of replaced CAs, which cannot be signed again because the keys no longer exist. Certificates of these
// CAs are valid for up to a day.
func (a *Authority) RevocationLists(previous []byte) ([]byte, error) {
	signing, list, now := a.signing(), a.denied.Load(), a.now()
	var serials []string
	if list != nil {
		serials = slices.Sorted(maps.Keys(list.serials))
	}
	old := parseLists(previous)
	var lists []*x509.RevocationList
	for _, by := range signing.signers() {
		current, rest := cutListsOf(old, by)
		old = rest
		if current == nil || !slices.Equal(serialsOf(current), serials) || now.After(current.NextUpdate) {
			var err error
			if current, err = by.signList(serials, now); err != nil {
				return nil, fmt.Errorf("signing the revocation list of %s: %w", by.cert.Subject, err)
			}
		}
		lists = append(lists, current)
	}
	old = slices.DeleteFunc(old, func(l *x509.RevocationList) bool { return now.After(l.NextUpdate) })
	lists = append(lists, old[:min(len(old), maxRetained)]...)
	var out []byte
	for _, l := range lists {
		out = append(out, pem.EncodeToMemory(&pem.Block{Type: "X509 CRL", Bytes: l.Raw})...)
	}
	return out, nil
}

// signers returns every CA that has a key and may have signed certificates of members of the mesh.
func (s *signing) signers() []*issuer {
	var all []*issuer
	for _, by := range []*issuer{s.issuer, s.server, s.next} {
		if by != nil && !slices.ContainsFunc(all, by.isSame) {
			all = append(all, by)
		}
	}
	return all
}

func (i *issuer) signList(serials []string, now time.Time) (*x509.RevocationList, error) {
	var entries []x509.RevocationListEntry
	for _, text := range serials {
		serial, _ := new(big.Int).SetString(text, 16)
		entries = append(entries, x509.RevocationListEntry{SerialNumber: serial, RevocationTime: now})
	}
	der, err := x509.CreateRevocationList(rand.Reader, &x509.RevocationList{
		Number: big.NewInt(now.UnixNano()), ThisUpdate: now.Add(-backdate), NextUpdate: i.cert.NotAfter.Add(time.Second), RevokedCertificateEntries: entries,
	}, i.cert, i.key)
	if err != nil {
		return nil, err
	}
	return x509.ParseRevocationList(der)
}

// parseLists parses PEM revocation lists. It stops at the first malformed list: RevocationLists then signs the missing
// lists again.
func parseLists(text []byte) (lists []*x509.RevocationList) {
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		list, err := x509.ParseRevocationList(block.Bytes)
		if err != nil {
			return lists
		}
		lists = append(lists, list)
	}
	return lists
}

// cutListsOf returns the first revocation list that by signed, and the lists of other CAs. It drops further lists of
// by.
func cutListsOf(lists []*x509.RevocationList, by *issuer) (list *x509.RevocationList, others []*x509.RevocationList) {
	for _, l := range lists {
		switch {
		case l.CheckSignatureFrom(by.cert) != nil:
			others = append(others, l)
		case list == nil:
			list = l
		}
	}
	return list, others
}

func serialsOf(list *x509.RevocationList) []string {
	var serials []string
	for _, e := range list.RevokedCertificateEntries {
		serials = append(serials, e.SerialNumber.Text(16))
	}
	slices.Sort(serials)
	return serials
}
