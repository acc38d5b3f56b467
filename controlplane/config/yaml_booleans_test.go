package config

import (
	"fmt"
	"testing"

	extensions "istio.io/api/extensions/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
)

// kubectl and Istio read YAML 1.1, in which unquoted yes, no, on and off are booleans.
func TestAmbiguousYAML11WordsAreReported(t *testing.T) {
	for spec, want := range map[string]struct {
		kind     string
		severity Severity
		field    string
	}{
		"address: 10.0.0.1\nlabels: {canary: yes}":                                          {"WorkloadEntry", Warning, "spec.labels[canary]"},
		"address: 10.0.0.1\nlabels: {'canary': No}":                                         {"WorkloadEntry", Warning, "spec.labels[canary]"},
		"address: 10.0.0.1\nlabels: {y: '1'}":                                               {"WorkloadEntry", Warning, "spec.labels[y]"},
		"selector: {on: a}\nports: [{port: 80}]":                                            {"Service", Warning, "spec.selector[on]"},
		"url: http://a/b\npluginConfig: {header: x, strict: on}":                            {"WasmPlugin", Warning, "spec.pluginConfig.strict"},
		"url: http://a/b\npluginConfig: {rules: [{x: off}]}":                                {"WasmPlugin", Warning, "spec.pluginConfig.rules[0].x"},
		"url: http://a/b\npluginConfig: {point: {y: 2}}":                                    {"WasmPlugin", Warning, "spec.pluginConfig.point.y"},
		"host: a\ntrafficPolicy: {outlierDetection: {splitExternalLocalOriginErrors: yes}}": {"DestinationRule", Info, "spec.trafficPolicy.outlierDetection.splitExternalLocalOriginErrors"},
		"address: 10.0.0.1\nlabels: {a: 'yes', b: \"no\", c: !!str on, d: yEs, e: none}":    {"WorkloadEntry", "", ""},
	} {
		resources, problems := Parse("f.yaml", []byte(wrap(want.kind, spec)))
		reported := ""
		for _, p := range problems {
			reported += fmt.Sprintf("%s %s %s; ", p.Code, p.Severity, p.Field)
			if p.At.Line == 0 || p.Remedy == "" {
				t.Errorf("without a place or a remedy: %v", p)
			}
		}
		expected := ""
		if want.field != "" {
			expected = fmt.Sprintf("%s %s %s; ", AmbiguousWord, want.severity, want.field)
		}
		if reported != expected || len(resources) != 1 {
			t.Errorf("%q: reported %q, not %q; %d in force", spec, reported, expected, len(resources))
		}
	}
}

// In fields that are not text they are booleans.
func TestYAML11BooleansAreReadAsInKubernetes(t *testing.T) {
	resources, _ := Parse("f.yaml", []byte(wrap("WasmPlugin", "url: http://a/b\npluginConfig: {a: yes, b: off, c: 'on'}")))
	fields := resources[0].Spec.(*extensions.WasmPlugin).GetPluginConfig().GetFields()
	if !fields["a"].GetBoolValue() || fields["b"].GetBoolValue() || fields["b"].AsInterface() != false || fields["c"].GetStringValue() != "on" {
		t.Errorf("read as %v", fields)
	}
	for word, want := range map[string]bool{"yes": true, "On": true, "y": true, "true": true, "TRUE": true, "no": false, "OFF": false, "n": false, "false": false, "!!bool true": true} {
		resources, problems := Parse("f.yaml", []byte(wrap("DestinationRule", "host: a\ntrafficPolicy: {outlierDetection: {splitExternalLocalOriginErrors: "+word+"}}")))
		if len(resources) != 1 {
			t.Errorf("%s: %v", word, problems)
		} else if got := resources[0].Spec.(*networking.DestinationRule).GetTrafficPolicy().GetOutlierDetection().GetSplitExternalLocalOriginErrors(); got != want {
			t.Errorf("%s is read as %t", word, got)
		}
	}
}
