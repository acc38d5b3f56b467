package jsonyaml

import (
	"strings"
	"testing"
)

func TestOrderAndKindsOfTheDocumentStay(t *testing.T) {
	var b strings.Builder
	if err := Write(&b, []byte(`{"z":"1337","a":[1,true,null],"m":{"k":"*"}}`)); err != nil {
		t.Fatal(err)
	}
	if want := "z: \"1337\"\na:\n  - 1\n  - true\n  - null\nm:\n  k: '*'\n"; b.String() != want {
		t.Errorf("got\n%s\nwant\n%s", b.String(), want)
	}
}
