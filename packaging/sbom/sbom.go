// Package sbom writes a software bill of materials as an SPDX 2.3 document in JSON. See
// https://spdx.github.io/spdx-spec/v2.3/.
package sbom

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
)

// noAssertion is the value of SPDX for a field that the author does not state.
const noAssertion = "NOASSERTION"

// Component is a part of the product: a program, a library or a file.
type Component struct {
	Name, Version string
	// Arch distinguishes components that differ by processor. It is empty for others.
	Arch string
	// PURL is the package URL, by which scanners look up vulnerabilities. It may be empty.
	PURL string
	// License is an SPDX license expression, or empty.
	License string
	// SHA256 is the hash of the component's file in hexadecimal digits, or empty.
	SHA256 string
	// Contains and DependsOn are parts of this component.
	Contains, DependsOn []*Component
}

type document struct {
	Version       string         `json:"spdxVersion"`
	DataLicense   string         `json:"dataLicense"`
	ID            string         `json:"SPDXID"`
	Name          string         `json:"name"`
	Namespace     string         `json:"documentNamespace"`
	Creation      creation       `json:"creationInfo"`
	Packages      []spdxPackage  `json:"packages"`
	Relationships []relationship `json:"relationships"`
}

type creation struct {
	Created  string   `json:"created"`
	Creators []string `json:"creators"`
}

type spdxPackage struct {
	ID               string        `json:"SPDXID"`
	Name             string        `json:"name"`
	Version          string        `json:"versionInfo"`
	DownloadLocation string        `json:"downloadLocation"`
	FilesAnalyzed    bool          `json:"filesAnalyzed"`
	LicenseConcluded string        `json:"licenseConcluded"`
	LicenseDeclared  string        `json:"licenseDeclared"`
	Copyright        string        `json:"copyrightText"`
	Checksums        []checksum    `json:"checksums,omitempty"`
	References       []externalRef `json:"externalRefs,omitempty"`
}

type checksum struct {
	Algorithm string `json:"algorithm"`
	Value     string `json:"checksumValue"`
}

type externalRef struct {
	Category string `json:"referenceCategory"`
	Type     string `json:"referenceType"`
	Locator  string `json:"referenceLocator"`
}

type relationship struct {
	Element string `json:"spdxElementId"`
	Type    string `json:"relationshipType"`
	Related string `json:"relatedSpdxElement"`
}

var invalidIDChars = regexp.MustCompile(`[^a-zA-Z0-9.-]+`)

// id returns the component's SPDX ID. The hash distinguishes names that differ only in characters that an ID cannot contain.
func (c *Component) id() string {
	name := strings.Join([]string{c.Name, c.Version, c.Arch}, " ")
	hash := sha256.Sum256([]byte(name))
	return fmt.Sprintf("SPDXRef-%s-%x", invalidIDChars.ReplaceAllString(strings.TrimSpace(name), "-"), hash[:4])
}

// Encode returns the document about a product and its parts. namespace is a URI that no other document has.
func Encode(product *Component, namespace string, created time.Time) ([]byte, error) {
	d := document{
		Version: "SPDX-2.3", DataLicense: "CC0-1.0", ID: "SPDXRef-DOCUMENT",
		Name: product.Name + "-" + product.Version, Namespace: namespace,
		Creation:      creation{created.UTC().Format(time.RFC3339), []string{"Organization: The pilotfish authors", "Tool: pilotfish-packaging-sbom"}},
		Relationships: []relationship{{"SPDXRef-DOCUMENT", "DESCRIBES", product.id()}},
	}
	d.add(product)
	slices.SortFunc(d.Packages, func(a, b spdxPackage) int { return strings.Compare(a.ID, b.ID) })
	text, err := json.MarshalIndent(d, "", "  ")
	return append(text, '\n'), err
}

// add adds a component and its parts. A component that several others contain is added once.
func (d *document) add(c *Component) {
	if slices.ContainsFunc(d.Packages, func(p spdxPackage) bool { return p.ID == c.id() }) {
		return
	}
	p := spdxPackage{ID: c.id(), Name: c.Name, Version: c.Version, DownloadLocation: noAssertion, Copyright: noAssertion,
		LicenseConcluded: noAssertion, LicenseDeclared: noAssertion}
	if c.License != "" {
		p.LicenseDeclared = c.License
	}
	if c.SHA256 != "" {
		p.Checksums = []checksum{{"SHA256", c.SHA256}}
	}
	if c.PURL != "" {
		p.References = []externalRef{{"PACKAGE-MANAGER", "purl", c.PURL}}
	}
	d.Packages = append(d.Packages, p)
	d.relate(c, "CONTAINS", c.Contains)
	d.relate(c, "DEPENDS_ON", c.DependsOn)
}

func (d *document) relate(c *Component, kind string, parts []*Component) {
	for _, part := range parts {
		d.Relationships = append(d.Relationships, relationship{c.id(), kind, part.id()})
		d.add(part)
	}
}
