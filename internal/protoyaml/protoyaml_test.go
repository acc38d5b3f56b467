package protoyaml

import (
	"slices"
	"strings"
	"testing"
	"time"

	meshconfig "istio.io/api/mesh/v1alpha1"
)

func TestInvalidFieldErrorHasLineValueAndRemedy(t *testing.T) {
	for text, want := range map[string]string{
		"trustDomain: a\naccesLogFile: x\n":               "line 2: accesLogFile: unknown field; did you mean accessLogFile?",
		"trustDomain: a\nconnectTimeout: soon\n":          "line 2: connectTimeout: soon: write a duration such as 5s",
		"enableTracing: perhaps\ntrustDomain: a\n":        "line 1: enableTracing: perhaps: write true or false",
		"outboundTrafficPolicy:\n  mode: ALLOW\n":         "line 2: outboundTrafficPolicy.mode: ALLOW: write one of REGISTRY_ONLY, ALLOW_ANY",
		"proxyHttpPort: eighty\ndefaultConfig: {}\n":      "line 1: proxyHttpPort: eighty: write a number within the field's range",
		"defaultConfig:\n  discoveryAdress: istiod:15012": "line 2: defaultConfig.discoveryAdress: unknown field",
	} {
		_, err := Unmarshal(text, &meshconfig.MeshConfig{})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", text, err, want)
		}
	}
}

func TestDocumentHasWrittenFields(t *testing.T) {
	m := &meshconfig.MeshConfig{}
	doc, err := Unmarshal("enableTracing: false\ndefaultConfig: {concurrency: 0}\n", m)
	if err != nil {
		t.Fatal(err)
	}
	if _, there := doc["enableTracing"]; !there {
		t.Error("a field with the value zero is not in the document")
	}
	if _, there := doc.Section("defaultConfig")["concurrency"]; !there || doc.Section("nothing") != nil {
		t.Errorf("sections of %v are wrong", doc)
	}
	if doc, err := Unmarshal("# nothing\n", m); doc != nil || err != nil {
		t.Errorf("an empty text yields %v, %v", doc, err)
	}
}

func TestDurationsAreWrittenAsIstioTakesThem(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"45s": 45 * time.Second, "1m": time.Minute, "1m30s": 90 * time.Second, "10ms": 10 * time.Millisecond, "0": 0, "0.5s": time.Second / 2, "-2m": -2 * time.Minute,
	} {
		m := &meshconfig.MeshConfig{}
		if _, err := Unmarshal("defaultConfig: {privateKeyProvider: {cryptomb: {pollDelay: '"+text+"'}}}\nconnectTimeout: '"+text+"'\n", m); err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		deep := m.GetDefaultConfig().GetPrivateKeyProvider().GetCryptomb().GetPollDelay().AsDuration()
		if got := m.GetConnectTimeout().AsDuration(); got != want || deep != want {
			t.Errorf("%s is %v and %v, want %v", text, got, deep, want)
		}
	}
	m := &meshconfig.MeshConfig{}
	const inList = "extensionProviders: [{name: a, opentelemetry: {service: s, port: 1, http: {path: /, timeout: 2m}}}]"
	if _, err := Unmarshal(inList, m); err != nil || m.GetExtensionProviders()[0].GetOpentelemetry().GetHttp().GetTimeout().GetSeconds() != 120 {
		t.Errorf("%v, %v", m, err)
	}
}

func TestUnknownFieldsAreReported(t *testing.T) {
	m := &meshconfig.MeshConfig{}
	doc, unknown, err := UnmarshalKnown("trustDomain: x\nnewer: {a: 1}\ndefaultConfig:\n  concurency: 2\n  drainDuration: 5s\n  proxyMetadata: {any: thing}\nextensionProviders:\n- {name: a, newer: 1}\n", m)
	if err != nil || m.GetTrustDomain() != "x" || m.GetDefaultConfig().GetDrainDuration().GetSeconds() != 5 || m.GetDefaultConfig().GetProxyMetadata()["any"] != "thing" ||
		m.GetExtensionProviders()[0].GetName() != "a" || doc["newer"] != nil {
		t.Errorf("%v, %v, %v", doc, m, err)
	}
	var told []string
	for _, u := range unknown {
		told = append(told, u.Error())
	}
	want := []string{"line 4: defaultConfig.concurency: unknown field; did you mean concurrency?", "line 2: extensionProviders[0].newer: unknown field", "line 2: newer: unknown field"}
	if !slices.Equal(told, want) {
		t.Errorf("unknown fields %q, want %q", told, want)
	}
	if _, _, err := UnmarshalKnown("newer: 1\nconnectTimeout: soon\n", m); err == nil || !strings.Contains(err.Error(), "connectTimeout: soon") {
		t.Errorf("an invalid value: %v", err)
	}
}

func TestErrorsNameNoGoType(t *testing.T) {
	for text, want := range map[string]string{"vm": "not a YAML mapping", "[a]": "not a YAML mapping", "a: 1\na: 2\n": "already defined"} {
		if _, err := Unmarshal(text, &meshconfig.MeshConfig{}); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "interface") {
			t.Errorf("%q: %v, want an error with %q", text, err, want)
		}
	}
}
