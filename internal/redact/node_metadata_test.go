package redact

import (
	"bytes"
	"strings"
	"testing"
)

func TestOnlySecretsOfNodeMetadataAreRedacted(t *testing.T) {
	for name, c := range map[string]struct{ in, want string }{
		"a config dump": {
			"{\n \"configs\": [\n  {\n   \"bootstrap\": {\n    \"node\": {\n     \"id\": \"a\",\n     \"metadata\": {\n      \"DB_PASSWORD\": \"x\",\n      \"N\": 1.50\n     },\n     \"cluster\": \"b\"\n    }\n   }\n  }\n ]\n}\n",
			"{\n \"configs\": [\n  {\n   \"bootstrap\": {\n    \"node\": {\n     \"id\": \"a\",\n     \"metadata\": {\n      \"DB_PASSWORD\": \"[redacted]\",\n      \"N\": 1.50\n     },\n     \"cluster\": \"b\"\n    }\n   }\n  }\n ]\n}\n",
		},
		"on one line":                 {`{"node":{"metadata":{"API_KEY":"x","deep":{"token":["y"]}}},"a":[1]}`, `{"node":{"metadata":{"API_KEY":"[redacted]","deep":{"token":["[redacted]"]}}},"a":[1]}`},
		"a value that shows a secret": {`{"node":{"metadata":{"A":"Bearer abcdefghijkl"}}}`, `{"node":{"metadata":{"A":"[redacted]"}}}`},
		"after the metadata":          {`{"node":{"metadata":null,"token":"x"}}`, `{"node":{"metadata":null,"token":"x"}}`},
		// In Envoy's API this field is a duration. A program that parses the output must find a duration.
		"other fields":               {`{ "token_bucket" : {"fill_interval": "60s"}, "metadata": {"token": "x"} }`, `{ "token_bucket" : {"fill_interval": "60s"}, "metadata": {"token": "x"} }`},
		"a list named node":          {`{"node":[{"metadata":{"token":"x"}}]}`, `{"node":[{"metadata":{"token":"x"}}]}`},
		"texts like names":           {`["node",{"a":"metadata","b":"{"}]`, `["node",{"a":"metadata","b":"{"}]`},
		"nothing":                    {"", ""},
		"one value":                  {"7\n", "7\n"},
		"characters that Go escapes": {`{"a":"<&\u00e9>"}`, `{"a":"<&\u00e9>"}`},
	} {
		var out bytes.Buffer
		if err := NodeMetadata(&out, strings.NewReader(c.in)); err != nil || out.String() != c.want {
			t.Errorf("%s: %v\n got %s\nwant %s", name, err, out.String(), c.want)
		}
	}
}

func TestNodeMetadataOfBrokenJSONIsAnError(t *testing.T) {
	for _, text := range []string{"{", `{"node"`, `{"node":{"metadata"`, `{"node":{"metadata":{"token":"x"`, `{"node":{"metadata":}}`, "[1}", "nope"} {
		var out bytes.Buffer
		if err := NodeMetadata(&out, strings.NewReader(text)); err == nil || strings.Contains(out.String(), "x") {
			t.Errorf("%s: %v, %s", text, err, out.String())
		}
	}
}
