package ca

import (
	"fmt"
	"strings"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// longestName bounds a namespace and a service account: the longest name that Kubernetes gives anything.
const longestName = 253

// Identity is who a workload is.
type Identity struct {
	TrustDomain, Namespace, ServiceAccount string
}

// SPIFFEID is the identity as a SPIFFE ID of Istio's form. It is meaningful for identities that Validate accepts, as all
// are that this package hands out.
func (id Identity) SPIFFEID() string {
	return "spiffe://" + id.TrustDomain + "/ns/" + id.Namespace + "/sa/" + id.ServiceAccount
}

// String is the SPIFFE ID.
func (id Identity) String() string { return id.SPIFFEID() }

// Validate refuses names that cannot stand in a SPIFFE ID, first of all those that would make it another's: an empty one,
// or one with a slash.
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
	// FromString would take a whole SPIFFE ID as well.
	if strings.ContainsAny(name, ":/") {
		return fmt.Errorf("the trust domain %q is not a plain name such as %s", name, DefaultTrustDomain)
	}
	if _, err := spiffeid.TrustDomainFromString(name); err != nil {
		return fmt.Errorf("the trust domain %q: %w", name, err)
	}
	return nil
}

func validateName(what, name string) error {
	if len(name) > longestName {
		return fmt.Errorf("the %s has %d characters; at most %d are allowed", what, len(name), longestName)
	}
	if err := spiffeid.ValidatePathSegment(name); err != nil {
		return fmt.Errorf("the %s %q cannot stand in a SPIFFE ID: %w", what, name, err)
	}
	return nil
}

// ParseSPIFFEID reads a SPIFFE ID of Istio's form, spiffe://TRUST-DOMAIN/ns/NAMESPACE/sa/SERVICE-ACCOUNT.
func ParseSPIFFEID(s string) (Identity, error) {
	id, err := spiffeid.FromString(s)
	if err != nil {
		return Identity{}, fmt.Errorf("%.300q is no SPIFFE ID: %w", s, err)
	}
	part := strings.Split(id.Path(), "/")
	if len(part) != 5 || part[1] != "ns" || part[3] != "sa" {
		return Identity{}, fmt.Errorf("%.300q is not of the form spiffe://TRUST-DOMAIN/ns/NAMESPACE/sa/SERVICE-ACCOUNT", s)
	}
	who := Identity{TrustDomain: id.TrustDomain().Name(), Namespace: part[2], ServiceAccount: part[4]}
	return who, who.Validate()
}
