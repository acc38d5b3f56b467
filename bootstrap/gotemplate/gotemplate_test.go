package gotemplate

import (
	"encoding/json"
	"strings"
	"testing"
	"text/template"
)

var data = map[string]any{
	"name": "reviews", "empty": "", "none": nil, "port": int64(15000), "ratio": 0.5, "on": true, "off": false,
	"list": []any{"a", "b", "c"}, "nothing": []any{},
	"config": map[string]any{"ProxyAdminPort": int64(15000), "Meta": map[string]any{"k": "v"}},
	"raw":    Raw(`{"a": "b"}`),
}

// matchingTemplates are templates for which the output must be that of text/template.
var matchingTemplates = []string{
	"plain",
	"{{ .name }} {{ .port }} {{ .ratio }} {{ .on }} {{ .config.ProxyAdminPort }} {{ .config.Meta.k }}",
	"a {{- .name -}} b",
	"{{/* nothing */}}x",
	`{{ if .name }}1{{ else }}2{{ end }}{{ if .empty }}1{{ else if .port }}2{{ else }}3{{ end }}`,
	`{{ if and .name .port }}1{{ end }}{{ if or .empty .none }}1{{ else }}2{{ end }}{{ if not .off }}3{{ end }}`,
	`{{ or .empty "x" }} {{ and .name "y" }}`,
	`{{ range .list }}<{{ . }}>{{ end }}{{ range .nothing }}x{{ else }}none{{ end }}`,
	`{{ range $i, $v := .list }}{{ $i }}={{ $v }};{{ end }}{{ range $v := .list }}{{ $v }}{{ end }}`,
	`{{ range $k, $v := .config.Meta }}{{ $k }}={{ $v }}{{ end }}`,
	`{{ range .list }}{{ if eq . "b" }}{{ continue }}{{ end }}{{ . }}{{ end }}`,
	`{{ range .list }}{{ if eq . "b" }}{{ break }}{{ end }}{{ . }}{{ end }}`,
	`{{ with .config }}{{ .ProxyAdminPort }}{{ $.name }}{{ end }}{{ with .empty }}x{{ else }}y{{ end }}`,
	`{{ $x := .name }}{{ $x }}{{ if true }}{{ $x = "other" }}{{ $x := "inner" }}{{ $x }}{{ end }}{{ $x }}`,
	`{{ define "t" }}[{{ . }}]{{ end }}{{ template "t" .name }}{{ block "b" .port }}({{ . }}){{ end }}`,
	`{{ eq .name "reviews" }} {{ ne .port 1 }} {{ lt 1 2 }} {{ ge 2 2 }} {{ eq .name "a" "b" "reviews" }}`,
	`{{ len .list }} {{ len .name }} {{ index .list 1 }} {{ index .config "ProxyAdminPort" }}`,
	`{{ printf "%s-%d %q %v" .name .port .name .on }} {{ print 1 2 "x" }} {{ println "a" "b" }}`,
	`{{ .name | printf "%s!" }} {{ .name | len | printf "%03d" }} {{ (index .list 0) | printf "%s" }}`,
	`{{ js "a'b\"c\\d<>" }} {{ urlquery "a b&c" }}`,
	"{{ `raw \\ string` }} {{ 1.5 }} {{ 'a' }} {{ 0x10 }} {{ (print .name) }} {{ (.config).ProxyAdminPort }}",
	`{{ true }}{{ if (and .on (not .off)) }}x{{ end }}`,
}

func TestOutputEqualsThatOfTextTemplate(t *testing.T) {
	for _, text := range matchingTemplates {
		var want strings.Builder
		if err := template.Must(template.New("main").Parse(text)).Execute(&want, data); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		if got, err := Execute("main", text, data, nil); err != nil || got != want.String() {
			t.Errorf("%s:\n got %q, %v\nwant %q", text, got, err, want.String())
		}
	}
}

func TestFunctionsOfBootstraps(t *testing.T) {
	for text, want := range map[string]string{
		`{{ toJSON .list }} {{ toJson .config.Meta }} {{ toJSON .none }} {{ .raw }}`:           `["a","b","c"] {"k":"v"} {} {"a": "b"}`,
		`{{ .empty | default "d" }} {{ default "d" .name }} {{ coalesce .none .empty .name }}`: `d reviews reviews`,
		`{{ quote .name .port }} {{ squote "it's" }} {{ upper .name }} {{ join "," .list }}`:   `"reviews" "15000" 'it''s' REVIEWS a,b,c`,
		`{{ add 1 2 .port }} {{ sub 5 2 }} {{ int "42" }} {{ ternary "a" "b" .on }}`:           `15003 3 42 a`,
		`{{ range splitList "," "x,y" }}[{{ . }}]{{ end }} {{ trimSuffix "s" .name }}`:         `[x][y] review`,
		`{{ replace "e" "E" .name }} {{ contains "view" .name }} {{ hasPrefix "re" .name }}`:   `rEviEws true true`,
		`{{ (dict "a" 1).a }} {{ hasKey .config "x" }} {{ first .list }}{{ last .list }}`:      `1 false ac`,
		`{{ (fromJson "{\"a\": [1]}").a | first }} {{ b64enc "x" | b64dec }}`:                  `1 x`,
	} {
		if got, err := Execute("main", text, data, nil); err != nil || got != want {
			t.Errorf("%s:\n got %q, %v\nwant %q", text, got, err, want)
		}
	}
}

// A name with a quote in it does not break the JSON around it.
func TestTextsAreEscapedForTheQuotesAroundThem(t *testing.T) {
	hostile := "a\"b\\c\nd, \"x\": 1"
	got, err := Execute("t", `{"id": "{{ .id }}", "again": {{ quote .id }}, "json": {{ toJSON .id }}}`, map[string]any{"id": hostile}, nil)
	var read map[string]string
	if err != nil || json.Unmarshal([]byte(got), &read) != nil {
		t.Fatalf("%v: %s", err, got)
	}
	for name, value := range read {
		if value != hostile {
			t.Errorf("%s is %q", name, value)
		}
	}
}

func TestTemplateErrorsNameTheLine(t *testing.T) {
	for text, want := range map[string]string{
		"a\n{{ .nam }}":          "main:2: option .nam is not known; did you mean .name?",
		"{{ .quite_different }}": ".quite_different is not known",
		"{{ .name.x }}":          "a text has no fields",
		"{{ .list.Len }}":        "a list has no fields",
		"\n\n{{ if .name }}":     "main:3: unexpected EOF",
		"{{ nosuch .name }}":     `function "nosuch" not defined`,
		"{{ index .list 7 }}":    "no entry 7",
		"{{ lt .name 1 }}":       "cannot be compared",
		`{{ template "x" }}`:     `"x" is not defined`,
		`{{ define "x" }}{{ template "x" }}{{ end }}{{ template "x" }}`:               "includes itself",
		`{{ range .name }}{{ end }}`:                                                  "cannot range over a text",
		`{{ .name 1 }}`:                                                               "is not a function",
		`{{ quote | upper 1 2 }}`:                                                     "upper: the function needs 1 arguments, not 3",
		`{{ range 10000000 }}{{ end }}`:                                               "has too many steps",
		`{{ range 2000 }}{{ range 2000 }}x{{ end }}{{ end }}`:                         "steps",
		`{{ $a := "x" }}{{ range 100 }}{{ $a = print $a $a }}{{ end }}{{ $a }}`:       "exceeds",
		`{{ $a := list 1 }}{{ range 100 }}{{ $a = list $a $a }}{{ end }}{{ $a }}`:     "exceeds",
		`{{ printf "%999999999d" 1 }}{{ range 5000 }}{{ printf "%999d" 1 }}{{ end }}`: "exceeds",
		strings.Repeat("x", maxInput+1):                                               "a template may have at most",
		"{{/**/}}":                                                                    "",
	} {
		_, err := Execute("main", text, data, nil)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%.60s: %v, want %q", text, err, want)
		}
	}
}

func FuzzExecute(f *testing.F) {
	for _, text := range matchingTemplates {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		out, err := Execute("main", text, data, nil)
		if len(out) > maxOutput {
			t.Errorf("%d bytes", len(out))
		}
		if err != nil && out != "" {
			t.Errorf("%v, and %q all the same", err, out)
		}
	})
}
