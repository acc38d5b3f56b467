package ca

import (
	"fmt"
	"strings"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// maxName limits the length of the names of namespaces and service accounts, as in Kubernetes.
const maxName = 253

// Identity is the identity of a workload.
type Identity struct {
	TrustDomain, Namespace, ServiceAccount string
}

// SPIFFEID returns the identity as a SPIFFE ID of Istio's form. The result is valid only if Validate accepts the
// identity, as it does for all identities that this package returns.
func (id Identity) SPIFFEID() string {
	return "spiffe://" + id.TrustDomain + "/ns/" + id.Namespace + "/sa/" + id.ServiceAccount
}

// String returns the SPIFFE ID.
func (id Identity) String() string { return id.SPIFFEID() }

// Validate returns an error for names that are invalid in a SPIFFE ID. In particular, an empty name or a name with a
// slash would produce the ID of another identity.
func (id Identity) Validate() error {
	if err := validateTrustDomain(id.TrustDomain); err != nil {
		return err
	}
	if err := validateName("namespace", id.Namespace); err != nil {
		return err
	}
	return validateName("service account", id.ServiceAccount)
}

func validateTrustDomain(name string) error {
	// TrustDomainFromString would also accept a whole SPIFFE ID.
	if strings.ContainsAny(name, ":/") {
		return fmt.Errorf("the trust domain %q is not a plain name such as %s", name, DefaultTrustDomain)
	}
	if _, err := spiffeid.TrustDomainFromString(name); err != nil {
		return fmt.Errorf("the trust domain %q: %w", name, err)
	}
	return nil
}

func validateName(what, name string) error {
	if len(name) > maxName {
		return fmt.Errorf("the %s has %d characters; at most %d are allowed", what, len(name), maxName)
	}
	if err := spiffeid.ValidatePathSegment(name); err != nil {
		return fmt.Errorf("the %s %q is not valid in a SPIFFE ID: %w", what, name, err)
	}
	return nil
}

// ParseSPIFFEID parses a SPIFFE ID of Istio's form, spiffe://TRUST-DOMAIN/ns/NAMESPACE/sa/SERVICE-ACCOUNT.
func ParseSPIFFEID(s string) (Identity, error) {
	id, err := spiffeid.FromString(s)
	if err != nil {
		return Identity{}, fmt.Errorf("%.300q is not a SPIFFE ID: %w", s, err)
	}
	part := strings.Split(id.Path(), "/")
	if len(part) != 5 || part[1] != "ns" || part[3] != "sa" {
		return Identity{}, fmt.Errorf("%.300q is not of the form spiffe://TRUST-DOMAIN/ns/NAMESPACE/sa/SERVICE-ACCOUNT", s)
	}
	who := Identity{TrustDomain: id.TrustDomain().Name(), Namespace: part[2], ServiceAccount: part[4]}
	return who, who.Validate()
}
