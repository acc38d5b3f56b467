package protoyaml

import (
	"strings"
	"testing"

	meshconfig "istio.io/api/mesh/v1alpha1"
)

func TestAFieldThatCannotBeReadIsToldWithLineValueAndRemedy(t *testing.T) {
	for text, want := range map[string]string{
		"trustDomain: a\naccesLogFile: x\n":               "line 2: accesLogFile: unknown field; did you mean accessLogFile?",
		"trustDomain: a\nconnectTimeout: soon\n":          "line 2: connectTimeout: soon: write a duration in seconds, as 5s",
		"enableTracing: perhaps\ntrustDomain: a\n":        "line 1: enableTracing: perhaps: write true or false",
		"outboundTrafficPolicy:\n  mode: ALLOW\n":         "line 2: outboundTrafficPolicy.mode: ALLOW: write one of REGISTRY_ONLY, ALLOW_ANY",
		"proxyHttpPort: eighty\ndefaultConfig: {}\n":      "line 1: proxyHttpPort: eighty: write a number that fits",
		"defaultConfig:\n  discoveryAdress: istiod:15012": "line 2: defaultConfig.discoveryAdress: unknown field",
	} {
		_, err := Unmarshal(text, &meshconfig.MeshConfig{})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", text, err, want)
		}
	}
}

func TestTheDocumentTellsWhichFieldsWereWritten(t *testing.T) {
	m := &meshconfig.MeshConfig{}
	doc, err := Unmarshal("enableTracing: false\ndefaultConfig: {concurrency: 0}\n", m)
	if err != nil {
		t.Fatal(err)
	}
	if _, there := doc["enableTracing"]; !there {
		t.Error("a field that is written as zero is not in the document")
	}
	if _, there := doc.Section("defaultConfig")["concurrency"]; !there || doc.Section("nothing") != nil {
		t.Errorf("sections of %v are wrong", doc)
	}
	if doc, err := Unmarshal("# nothing\n", m); doc != nil || err != nil {
		t.Errorf("an empty text gives %v, %v", doc, err)
	}
}
