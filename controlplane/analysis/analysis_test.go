package analysis

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/internal/terminal"
)

const wrong = `apiVersion: v1
kind: Service
metadata: {name: reviews}
spec: {selector: {app: reviews}, ports: [{name: http, port: 80}]}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: routes}
spec:
  hosts: [reviews]
  http:
  - route: [{destination: {host: reviews}}]
  - route: [{destination: {host: reviews}}]
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: bad}
spec: {host: reviews, nonsense: 1}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: reviews}
`

func analyze(t *testing.T, cfg Config) *Report {
	t.Helper()
	r, err := Analyze(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func codes(r *Report) string {
	var all []string
	for _, f := range r.Findings {
		all = append(all, string(f.Code))
	}
	return strings.Join(all, " ")
}

func TestFilesAndStdinHaveEqualFindings(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a.yaml")
	if err := os.WriteFile(file, []byte(wrong), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, cfg := range map[string]Config{
		"file":      {Paths: []string{file}},
		"directory": {Paths: []string{filepath.Dir(file)}},
		"stdin":     {Paths: []string{"-"}, Stdin: strings.NewReader(wrong)},
	} {
		r := analyze(t, cfg)
		if got := codes(r); got != "PF0202 PF0003 PF0007" || !r.AtLeast(config.Error) || r.Summary["warning"] != 1 || r.InForce != 2 {
			t.Errorf("%s: findings %s, summary %v, %d in force", name, got, r.Summary, r.InForce)
		}
	}
}

func TestFilesAndStdinAreAnalyzedTogether(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a.yaml")
	service, rest, _ := strings.Cut(wrong, "---\n")
	if err := os.WriteFile(file, []byte(service), 0o600); err != nil {
		t.Fatal(err)
	}
	routes, _, _ := strings.Cut(rest, "---\n")
	if got := codes(analyze(t, Config{Paths: []string{file, "-"}, Stdin: strings.NewReader(routes)})); got != "PF0202" {
		t.Errorf("findings %s", got)
	}
}

func TestErrorsCannotBeSuppressed(t *testing.T) {
	var list []Suppression
	for _, text := range []string{"PF0202=VirtualService default/*", "pf0007", "PF0003"} {
		s, err := ParseSuppression(text)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, s)
	}
	r := analyze(t, Config{Paths: []string{"-"}, Stdin: strings.NewReader(wrong), Suppress: list})
	if got := codes(r); got != "PF0003" || r.Suppress != 2 {
		t.Errorf("findings %s, %d suppressed", got, r.Suppress)
	}
	for _, bad := range []string{"PF9999", "PF0202=[", ""} {
		if _, err := ParseSuppression(bad); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}

func TestJSONReportFormatIsStable(t *testing.T) {
	r := analyze(t, Config{Paths: []string{"-"}, Stdin: strings.NewReader(wrong)})
	r.FilterSeverity(config.Warning)
	data, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"schema":"pilotfish.dev/analysis/v1","documents":4,"inForce":2,"suppressed":0,"summary":{"error":1,"info":1,"warning":1},` +
		`"findings":[{"name":"unreachable route","code":"PF0202","severity":"warning","resource":{"kind":"VirtualService","namespace":"default","name":"routes"},` +
		`"at":{"file":"-","line":13,"column":5},"field":"spec.http[1]","message":"the route is never reached: spec.http[0] matches all its requests",` +
		`"remedy":"move it before the route or match that matches its requests, or remove it"},` +
		`{"name":"no such field","code":"PF0003","severity":"error","resource":{"kind":"DestinationRule","namespace":"default","name":"bad"},` +
		`"at":{"file":"-","line":18,"column":23},"field":"spec.nonsense","message":"unknown field","remedy":"one of: exportTo, host, subsets, trafficPolicy, workloadSelector"}]}`
	if string(data) != want {
		t.Errorf("the report is\n%s\nnot\n%s", data, want)
	}
}

func TestTextReportIsAlignedAndEscaped(t *testing.T) {
	r := analyze(t, Config{Paths: []string{"-"}, Stdin: strings.NewReader(strings.ReplaceAll(wrong, "nonsense", `"non\x1bsense"`))})
	text := r.Text(terminal.Format{})
	const want = "(stdin)\n  13:5      warning  PF0202  VirtualService default/routes  spec.http[1]: the route is never reached"
	if !strings.HasPrefix(text, want) || strings.Contains(text, "\x1b") {
		t.Errorf("the report is\n%s", text)
	}
	if !strings.HasSuffix(text, "\n\n4 documents, 2 in force: 1 error, 1 warning, 1 info\n") {
		t.Errorf("the report ends with\n%s", text)
	}
}

func TestUnreadableInputIsAnError(t *testing.T) {
	for _, cfg := range []Config{{}, {Paths: []string{"/does/not/exist"}}, {Paths: []string{"-"}}} {
		if _, err := Analyze(cfg); err == nil {
			t.Errorf("%+v is accepted", cfg)
		}
	}
}

// The limit detects superlinear algorithms; the test is not a benchmark.
func TestTenThousandDocumentsTakeSeconds(t *testing.T) {
	var text strings.Builder
	for i := range 10_000 / 4 {
		text.WriteString(strings.NewReplacer("$", strings.Repeat("x", 1)+itoa(i)).Replace(`apiVersion: v1
kind: Service
metadata: {name: $}
spec: {selector: {app: $}, ports: [{name: http, port: 80}]}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: $}
spec: {hosts: [$], http: [{match: [{uri: {prefix: /a}}], route: [{destination: {host: $, subset: v1}}]}, {route: [{destination: {host: none$}}]}]}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: $}
spec: {host: $, subsets: [{name: v1, labels: {version: v1}}]}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: $}
spec: {selector: {matchLabels: {app: $}}, rules: [{to: [{operation: {methods: [GET]}}]}]}
---
`))
	}
	start := time.Now()
	r := analyze(t, Config{Paths: []string{"-"}, Stdin: strings.NewReader(text.String())})
	t.Logf("%d documents, %d findings, in %s", r.Documents, len(r.Findings), time.Since(start).Round(time.Millisecond))
	if r.Documents != 10_000 || r.Summary["warning"] != 2500 {
		t.Errorf("%d documents, %v", r.Documents, r.Summary)
	}
}

func itoa(i int) string {
	const digits = "0123456789"
	if i < 10 {
		return digits[i : i+1]
	}
	return itoa(i/10) + itoa(i%10)
}
