package sbom

import (
	"bytes"
	"encoding/json"
	"regexp"
	"testing"
	"time"
)

var validID = regexp.MustCompile(`^SPDXRef-[a-zA-Z0-9.-]+$`)

func newProduct() *Component {
	library := &Component{Name: "example.com/lib_x", Version: "v1.0.0+incompatible", PURL: "pkg:golang/example.com/lib_x@v1.0.0+incompatible"}
	similar := &Component{Name: "example.com/lib-x", Version: "v1.0.0+incompatible"}
	return &Component{Name: "pilotfish", Version: "1.2.3", License: "Apache-2.0", Contains: []*Component{
		{Name: "agent", Version: "1.2.3", Arch: "amd64", SHA256: "ab", DependsOn: []*Component{library, similar}},
		{Name: "agent", Version: "1.2.3", Arch: "arm64", SHA256: "cd", DependsOn: []*Component{library}},
	}}
}

func TestDocumentIsConsistent(t *testing.T) {
	text, err := Encode(newProduct(), "https://example.com/sbom/1", time.Unix(1700000000, 0))
	if err != nil {
		t.Fatal(err)
	}
	var d document
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&d); err != nil {
		t.Fatal(err)
	}
	if d.Version != "SPDX-2.3" || d.DataLicense != "CC0-1.0" || d.Creation.Created != "2023-11-14T22:13:20Z" || len(d.Creation.Creators) == 0 {
		t.Errorf("the document's header: %+v", d)
	}
	ids := map[string]bool{d.ID: true}
	for _, p := range d.Packages {
		if !validID.MatchString(p.ID) || ids[p.ID] {
			t.Errorf("the ID %s is invalid or not unique", p.ID)
		}
		ids[p.ID] = true
		if p.DownloadLocation == "" || p.LicenseConcluded == "" || p.LicenseDeclared == "" || p.Copyright == "" {
			t.Errorf("a required field is empty: %+v", p)
		}
	}
	if len(d.Packages) != 5 {
		t.Errorf("%d packages, want 5: the shared library once", len(d.Packages))
	}
	related := map[string]int{}
	for _, r := range d.Relationships {
		related[r.Type]++
		if !ids[r.Element] || !ids[r.Related] {
			t.Errorf("a relationship of an unknown element: %+v", r)
		}
	}
	if related["DESCRIBES"] != 1 || related["CONTAINS"] != 2 || related["DEPENDS_ON"] != 3 {
		t.Errorf("relationships: %v", related)
	}
}

func TestDocumentHasSameBytesEachTime(t *testing.T) {
	first, err := Encode(newProduct(), "https://example.com/sbom/1", time.Unix(1, 0))
	if err != nil {
		t.Fatal(err)
	}
	if second, _ := Encode(newProduct(), "https://example.com/sbom/1", time.Unix(1, 0)); !bytes.Equal(first, second) {
		t.Errorf("two documents differ:\n%s\n%s", first, second)
	}
}
