package config

import "testing"

func TestFieldQuotedIn(t *testing.T) {
	resources, problems := Parser{}.Parse("f.yaml", []byte(`apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {name: f}
spec:
  configPatches:
  - applyTo: HTTP_FILTER
    patch:
      operation: INSERT_FIRST
      value:
        name: lua.f
        typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua, default_source_code: {inline_string: "function envoy_on_request(handle) this is no Lua"}}
`))
	if len(resources) != 1 {
		t.Fatal(problems)
	}
	const value = "spec.configPatches[0].patch.value.fields"
	for text, want := range map[string]string{
		"no such value":     "",
		"filter lua.f: bad": value + "[name].stringValue",
		`script load error: [string "function envoy_on_request(handle) this..."]:1`: value + "[typed_config].structValue.fields[default_source_code].structValue.fields[inline_string].stringValue",
		`script load error: [string "function envoy_on_response(handle) this..."]`:  "",
		`a short quote: "function en..."`:                                           "",
		`an open quote: "function envoy_on_request`:                                 "",
	} {
		if field, _ := resources[0].FieldQuotedIn(text); field != want {
			t.Errorf("%q quotes %q, not %q", text, field, want)
		}
	}
}
