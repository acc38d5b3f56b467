package topology

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/registry"
)

const head = "apiVersion: pilotfish.dev/v1alpha1\nkind: Mesh\nmetadata:\n  name: shop\n"

func TestEveryFieldOfATopologyIsRead(t *testing.T) {
	top, err := Parse("dir/mesh.yaml", []byte(head+`spec:
  config: [istio, /etc/more.yaml]
  network: 127.99.0.0/16
  trustDomain: shop.example
  mesh:
    accessLogFile: /dev/stdout
    defaultConfig: {concurrency: 2, drainDuration: 3s}
  workloads:
  - name: gate
    type: gateway
    labels: {istio: ingressgateway}
    ports:
    - {name: http, port: 8080, publish: 9999}
    - {name: https, port: 8443, protocol: https, publish: "0.0.0.0:8443"}
  - name: reviews
    namespace: books
    labels: {app: reviews, version: v1}
    annotations: {note: mine}
    serviceAccount: reader
    ports: [{name: http, port: 9080, protocol: http}, {port: 9081}]
    command: [./run, "--listen=${APP_ADDRESS}:${PORT}", "$${HOME}", "${PORT_HTTP}"]
    env: {DB: "${UPSTREAM_MYSQL}", N: "$N"}
    workingDir: work
    addCapabilities: [NET_RAW, CAP_SYS_PTRACE]
    replicas: 3
    restart: on-failure
    readiness: {httpGet: {path: /ready, port: 9081}}
    startupTimeout: 90s
    upstreams: [{host: mysql, port: 3306}, {name: other, host: db.example.com, port: 5432}]
`))
	if err != nil {
		t.Fatal(err)
	}
	gate, reviews := top.Workloads[0], top.Workloads[1]
	checks := []struct {
		what      string
		got, want any
	}{
		{"config", top.Config, []string{"dir/istio", "/etc/more.yaml"}},
		{"network", top.Network.String(), "127.99.0.0/16"},
		{"trust domain of the mesh configuration", top.Mesh.TrustDomain, "shop.example"},
		{"drain duration", top.Mesh.DefaultConfig.DrainDuration.AsDuration(), 3 * time.Second},
		{"gateway", gate.Type, Gateway},
		{"gateway's labels", gate.Labels, map[string]string{"istio": "ingressgateway", "app": "gate"}},
		{"published", gate.Ports[0].Publish, netip.MustParseAddrPort("127.0.0.1:9999")},
		{"published everywhere", gate.Ports[1].Publish, netip.MustParseAddrPort("0.0.0.0:8443")},
		{"protocol", gate.Ports[1].Protocol, "HTTPS"},
		{"default namespace", gate.Namespace, "default"},
		{"namespace", reviews.Namespace, "books"},
		{"service account", reviews.ServiceAccount, "reader"},
		{"port without a name", reviews.Ports[1], Port{Name: "tcp-9081", Port: 9081, Protocol: "TCP"}},
		{"working directory", reviews.WorkingDir, "dir/work"},
		{"capabilities", reviews.AddCapabilities, []string{"NET_RAW", "SYS_PTRACE"}},
		{"restart", reviews.Restart, RestartOnFailure},
		{"readiness", reviews.Readiness, Readiness{Path: "/ready", Port: 9081}},
		{"start-up", reviews.StartupTimeout, 90 * time.Second},
		{"upstreams", reviews.Upstreams, []Upstream{{"mysql", "mysql.books.svc.cluster.local", 3306}, {"other", "db.example.com", 5432}}},
		{"annotations", reviews.Annotations, map[string]string{"note": "mine"}},
		{"replica", reviews.instanceName(2), "reviews-2"},
	}
	for _, c := range checks {
		if diff := cmp.Diff(c.want, c.got, cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.what, diff)
		}
	}
}

const okWorkload = "{name: a, command: [x]}"

func TestInvalidTopologyIsRefusedWithPosition(t *testing.T) {
	tests := map[string]struct {
		yaml string
		want []string // each must be in the message
	}{
		"empty":               {"", []string{"m.yaml:1:1", "empty"}},
		"only a comment":      {"# nothing\n", []string{"m.yaml:1:1", "empty"}},
		"not YAML":            {head + "spec: [\n", []string{"m.yaml:5", "not YAML"}},
		"a list":              {"- a\n", []string{"m.yaml:1:1", "a mapping is expected here, but this is a list"}},
		"two documents":       {head + "spec: {workloads: []}\n---\nkind: Service\n", []string{"m.yaml:6:1", "a second one begins here", "spec.config"}},
		"other kind":          {"apiVersion: pilotfish.dev/v1alpha1\nkind: Service\nmetadata: {name: a}\nspec: {workloads: []}\n", []string{`m.yaml:2:7`, `kind: "Service"`, "use one of Mesh"}},
		"other version":       {"apiVersion: pilotfish.dev/v1\nkind: Mesh\nmetadata: {name: a}\nspec: {workloads: []}\n", []string{`m.yaml:1:13`, "pilotfish.dev/v1alpha1"}},
		"no name":             {"apiVersion: pilotfish.dev/v1alpha1\nkind: Mesh\nspec: {workloads: []}\n", []string{"metadata.name is missing"}},
		"bad name":            {"apiVersion: pilotfish.dev/v1alpha1\nkind: Mesh\nmetadata: {name: My_Mesh}\nspec: {workloads: []}\n", []string{`m.yaml:3:18`, `metadata.name: "My_Mesh"`, "lower-case"}},
		"no workloads":        {head + "spec: {}\n", []string{"spec.workloads", "missing"}},
		"unknown field":       {head + "spec:\n  workload: []\n  workloads: []\n", []string{"m.yaml:6:3", "spec.workload", "unknown field", "did you mean workloads?"}},
		"field twice":         {head + "spec:\n  workloads: []\n  workloads: []\n", []string{"m.yaml:7:3", "set twice"}},
		"wrong type":          {head + "spec: {workloads: {a: b}}\n", []string{"m.yaml:5:19", "a list is expected here, but this is a mapping"}},
		"number for a string": {head + "spec: {workloads: [{name: 12, command: [x]}]}\n", []string{`spec.workloads[0].name: "12"`, "this is a number", `put the value in quotes: "12"`}},
		"string for a number": {head + "spec: {workloads: [{name: a, command: [x], ports: [{port: \"80\"}]}]}\n", []string{"spec.workloads[0].ports[0].port", "a whole number is expected"}},
		"no capability":       {head + "spec: {workloads: [{name: a, command: [x], addCapabilities: [NET_RAW, root]}]}\n", []string{"spec.workloads[0].addCapabilities[1]", "not a capability", "such as NET_RAW"}},
		"label not a string":  {head + "spec: {workloads: [{name: a, command: [x], labels: {v: 1}}]}\n", []string{"spec.workloads[0].labels.v", `"1"`, "in quotes"}},
		"bad label":           {head + "spec: {workloads: [{name: a, command: [x], labels: {v: a b}}]}\n", []string{"spec.workloads[0].labels.v", "not the value of a Kubernetes label"}},
		"port too large":      {head + "spec: {workloads: [{name: a, command: [x], ports: [{port: 70000}]}]}\n", []string{"between 1 and 65535"}},
		"port twice":          {head + "spec: {workloads: [{name: a, command: [x], ports: [{port: 80}, {port: 80}]}]}\n", []string{"spec.workloads[0].ports[1].port", "listed twice"}},
		"port name twice":     {head + "spec: {workloads: [{name: a, command: [x], ports: [{name: p, port: 80}, {name: p, port: 81}]}]}\n", []string{"ports[1].name", "two ports"}},
		"proxy's port":        {head + "spec: {workloads: [{name: a, command: [x], ports: [{port: 15020}]}]}\n", []string{"15020", "the agent's status"}},
		"unknown protocol":    {head + "spec: {workloads: [{name: a, command: [x], ports: [{port: 80, protocol: htp}]}]}\n", []string{`"htp"`, "HTTP2"}},
		"published service":   {head + "spec: {workloads: [{name: a, command: [x], ports: [{port: 80, publish: 8080}]}]}\n", []string{"publish", "only ports of gateways"}},
		"published twice":     {head + "spec: {workloads: [{name: a, type: gateway, ports: [{port: 80, publish: 8080}]}, {name: b, type: gateway, ports: [{port: 80, publish: 8080}]}]}\n", []string{"spec.workloads[1].ports[0].publish", "workload a already publishes 127.0.0.1:8080"}},
		"published replicas":  {head + "spec: {workloads: [{name: a, type: gateway, replicas: 2, ports: [{port: 80, publish: 8080}]}]}\n", []string{"2 replicas cannot listen on one address"}},
		"bad publish":         {head + "spec: {workloads: [{name: a, type: gateway, ports: [{port: 80, publish: here}]}]}\n", []string{`"here"`, "0.0.0.0:8080"}},
		"two of one name":     {head + "spec:\n  workloads:\n  - " + okWorkload + "\n  - " + okWorkload + "\n", []string{"m.yaml:8:12", `spec.workloads[1].name: "a"`, "m.yaml:7:5", "another workload"}},
		"replica's name":      {head + "spec: {workloads: [{name: a, command: [x], replicas: 2}, {name: a-2, command: [x]}]}\n", []string{"spec.workloads[1].name", "an instance of workload a (", ") also has the name a-2"}},
		"too many":            {head + "spec: {workloads: [{name: a, command: [x], replicas: 200}, {name: b, command: [x], replicas: 200}]}\n", []string{"400 instances", "254"}},
		"no command":          {head + "spec: {workloads: [{name: a}]}\n", []string{"spec.workloads[0].command", "missing"}},
		"empty command":       {head + "spec: {workloads: [{name: a, command: []}]}\n", []string{"spec.workloads[0].command", "the command is empty"}},
		"command as a string": {head + "spec: {workloads: [{name: a, command: run me}]}\n", []string{"a list is expected here, but this is a string"}},
		"gateway's command":   {head + "spec: {workloads: [{name: a, type: gateway, command: [x]}]}\n", []string{"spec.workloads[0].command", "a gateway has no application"}},
		"gateway's sidecar":   {head + "spec: {workloads: [{name: a, type: gateway, sidecar: false}]}\n", []string{"spec.workloads[0].sidecar", "a gateway has no application"}},
		"sidecar as a string": {head + "spec: {workloads: [{name: a, command: [x], sidecar: \"false\"}]}\n", []string{`spec.workloads[0].sidecar: "false"`, "true or false is expected here, but this is a string"}},
		"unknown type":        {head + "spec: {workloads: [{name: a, type: sidecar, command: [x]}]}\n", []string{`"sidecar"`, "service, gateway"}},
		"unknown restart":     {head + "spec: {workloads: [{name: a, restart: maybe, command: [x]}]}\n", []string{`"maybe"`, "on-failure"}},
		"no replicas":         {head + "spec: {workloads: [{name: a, replicas: 0, command: [x]}]}\n", []string{"between 1 and 254"}},
		"unknown variable":    {head + "spec: {workloads: [{name: a, command: [x, \"${PROT}\"]}]}\n", []string{"spec.workloads[0].command[1]", `the variable "PROT" does not exist`, "${PORT}", "$${"}},
		"variable in env":     {head + "spec: {workloads: [{name: a, command: [x], env: {A: \"${HOME}\"}}]}\n", []string{"spec.workloads[0].env.A", `"HOME"`}},
		"bad env name":        {head + "spec: {workloads: [{name: a, command: [x], env: {A=B: c}}]}\n", []string{"not the name of an environment variable"}},
		"env not a string":    {head + "spec: {workloads: [{name: a, command: [x], env: {A: 1}}]}\n", []string{"spec.workloads[0].env.A", "in quotes"}},
		"two probes":          {head + "spec: {workloads: [{name: a, command: [x], ports: [{port: 80}], readiness: {httpGet: {}, tcpSocket: {port: 80}}}]}\n", []string{"one readiness probe"}},
		"probe's port":        {head + "spec: {workloads: [{name: a, command: [x], ports: [{port: 80}], readiness: {tcpSocket: {port: 81}}}]}\n", []string{"the workload has no port 81"}},
		"probe without port":  {head + "spec: {workloads: [{name: a, command: [x], readiness: {httpGet: {path: /}}}]}\n", []string{"the workload has no port to probe"}},
		"probe's path":        {head + "spec: {workloads: [{name: a, command: [x], ports: [{port: 80}], readiness: {httpGet: {path: x}}}]}\n", []string{`"x"`, "/healthz"}},
		"bad duration":        {head + "spec: {workloads: [{name: a, command: [x], startupTimeout: 30}]}\n", []string{`"30"`, "30s"}},
		"upstream twice":      {head + "spec: {workloads: [{name: a, command: [x], upstreams: [{host: db, port: 1}, {host: db.other.svc, port: 1}]}]}\n", []string{"spec.workloads[0].upstreams[1]", "two upstreams"}},
		"upstream's host":     {head + "spec: {workloads: [{name: a, command: [x], upstreams: [{host: DB_1, port: 1}]}]}\n", []string{`"DB_1"`}},
		"bad network":         {head + "spec: {network: 10.0.0.0/16, workloads: []}\n", []string{`"10.0.0.0/16"`, "127.N.0.0/16"}},
		"localhost's network": {head + "spec: {network: 127.0.0.0/16, workloads: []}\n", []string{"127.N.0.0/16"}},
		"bad trust domain":    {head + "spec: {trustDomain: Not One, workloads: []}\n", []string{"not a trust domain"}},
		"two trust domains":   {head + "spec: {trustDomain: a, mesh: {trustDomain: b}, workloads: []}\n", []string{"spec.trustDomain", `spec.mesh.trustDomain has another value, "b"`}},
		"unknown mesh field":  {head + "spec: {workloads: [], mesh: {acessLogFile: x}}\n", []string{"m.yaml:5:30", "spec.mesh.acessLogFile", "did you mean accessLogFile?"}},
		"deep in mesh":        {head + "spec: {workloads: [], mesh: {defaultConfig: {concurrency: many}}}\n", []string{"m.yaml:5:59", "spec.mesh.defaultConfig.concurrency", `"many"`}},
		"duration in mesh":    {head + "spec: {workloads: [], mesh: {connectTimeout: 10}}\n", []string{"spec.mesh.connectTimeout", `"10"`}},
		"enum in mesh":        {head + "spec: {workloads: [], mesh: {outboundTrafficPolicy: {mode: ALLOW}}}\n", []string{"spec.mesh.outboundTrafficPolicy.mode", `"ALLOW"`}},
		"list in mesh":        {head + "spec: {workloads: [], mesh: {extensionProviders: [{name: a}, {nam: b}]}}\n", []string{"spec.mesh.extensionProviders[1].nam", "did you mean name?"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := Parse("m.yaml", []byte(tc.yaml))
			var invalid *InvalidError
			if !errors.As(err, &invalid) {
				t.Fatalf("got %v, want an *InvalidError", err)
			}
			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("the message has no %q:\n%s", want, err)
				}
			}
			for _, p := range invalid.Problems {
				if p.At.File != "m.yaml" || p.At.Line == 0 {
					t.Errorf("a problem without its place: %s", p)
				}
			}
		})
	}
}

func TestAllTopologyProblemsAreReportedTogether(t *testing.T) {
	_, err := Parse("m.yaml", []byte(head+"spec:\n  nonsense: 1\n  workloads:\n  - {name: A, command: x}\n  - {nam: b}\n"))
	var invalid *InvalidError
	if !errors.As(err, &invalid) || len(invalid.Problems) < 5 {
		t.Fatalf("got %v, want five problems", err)
	}
}

func TestCrossFieldProblemsAreReportedWithFieldProblems(t *testing.T) {
	file := filepath.Join(t.TempDir(), "mesh.yaml")
	spec := `spec:
  config: nowhere
  workloads:
  - {name: a, command: [x], replicas: many}
  - {name: a, command: [x, "${NOPE}"]}
  - {name: b, command: x, env: {A: 1, B: "${NOT_THIS}"}}
  - {name: c, nonsense: 1, command: [x, "${PORT_WEB}"], ports: [{port: 0, name: web}, {port: 0, name: "1 2"}]}
  - {command: [x]}
  - {command: [x], readiness: {httpGet: {port: 9}}, ports: 9}
  - {name: d, type: gate, ports: [{port: 80, publish: 8080}], upstreams: [{host: A_B, port: 1}, {host: C_D, port: 2}]}
`
	if err := os.WriteFile(file, []byte(head+spec), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Load(file)
	var invalid *InvalidError
	if !errors.As(err, &invalid) {
		t.Fatalf("got %v", err)
	}
	var got []string
	for _, p := range invalid.Problems {
		got = append(got, p.Field+": "+p.Message)
	}
	want := []string{
		"spec.config: " + filepath.Join(filepath.Dir(file), "nowhere") + " cannot be read: no such file or directory",
		"spec.workloads[0].replicas: a whole number is expected here, but this is a string",
		"spec.workloads[1].name: another workload with this name is defined at " + file + ":8:5",
		`spec.workloads[1].command[1]: the variable "NOPE" does not exist`,
		"spec.workloads[2].command: a list is expected here, but this is a string",
		"spec.workloads[2].env.A: a string is expected here, but this is a number",
		`spec.workloads[2].env.B: the variable "NOT_THIS" does not exist`,
		"spec.workloads[3].nonsense: unknown field",
		"spec.workloads[3].ports[0].port: the number is not between 1 and 65535",
		"spec.workloads[3].ports[1].port: the number is not between 1 and 65535",
		"spec.workloads[3].ports[1].name: not a name",
		"spec.workloads[4].name: the field is missing",
		"spec.workloads[5].name: the field is missing",
		"spec.workloads[5].ports: a list is expected here, but this is a number",
		"spec.workloads[6].command: the field is missing",
		"spec.workloads[6].type: not a valid value",
		"spec.workloads[6].upstreams[0].host: not a name",
		"spec.workloads[6].upstreams[1].host: not a name",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("problems (-want +got):\n%s", diff)
	}
}

func TestMissingTopologyFilesAreReportedWithPosition(t *testing.T) {
	file := filepath.Join(t.TempDir(), "mesh.yaml")
	if err := os.WriteFile(file, []byte(head+"spec:\n  config: nowhere\n  workloads: []\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Load(file)
	if err == nil || !strings.Contains(err.Error(), "mesh.yaml:6:11") || !strings.Contains(err.Error(), "no such file") {
		t.Fatalf("got %v", err)
	}
	if _, err := Load(file + ".not"); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("got %v, want ErrNotExist", err)
	}
}

func TestExpansionLeavesOtherDollarSigns(t *testing.T) {
	vars := map[string]string{"A": "1", "B": "${A}"}
	for in, want := range map[string]string{
		"${A}${B}": "1${A}", "$A $ $$ $$A": "$A $ $$ $$A", "$${A} ${A}": "${A} 1", "$${A": "${A", "x${": "x${", "$$${A}": "$${A}",
	} {
		got, err := ExpandVariables(in, vars)
		if err != nil {
			t.Errorf("%q: %v", in, err)
		}
		if got != want {
			t.Errorf("%q became %q, want %q", in, got, want)
		}
	}
	if _, err := ExpandVariables("${C}", vars); err == nil {
		t.Error("an unknown variable was accepted")
	}
}

func TestEveryInstanceHasUniqueAddresses(t *testing.T) {
	top, err := Parse("m.yaml", []byte(head+"spec: {workloads: [{name: a, command: [x], replicas: 2, upstreams: [{host: db, port: 3306}]}, {name: b, type: gateway}]}\n"))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, i := range AssignAddresses(top, LoopbackNetwork(80)) {
		got = append(got, i.Name+" "+i.Proxy.String()+" "+i.App.String())
	}
	want := []string{"a-1 127.80.1.1 127.80.1.2", "a-2 127.80.2.1 127.80.2.2", "b 127.80.3.1 127.80.3.2"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatal(diff)
	}
	if got := AssignAddresses(top, LoopbackNetwork(80))[1].UpstreamAddress(0).String(); got != "127.80.2.16:3306" {
		t.Fatalf("upstream at %s", got)
	}
}

func TestWorkloadWithoutSidecarIsRecognized(t *testing.T) {
	top, err := Parse("m.yaml", []byte(head+`spec:
  workloads:
  - {name: default, command: [x]}
  - {name: set, command: [x], sidecar: true}
  - {name: field, command: [x], sidecar: false}
  - {name: label, command: [x], labels: {sidecar.istio.io/inject: "false"}}
  - {name: annotation, command: [x], annotations: {sidecar.istio.io/inject: "false"}}
  - {name: both, command: [x], labels: {sidecar.istio.io/inject: "true"}, annotations: {sidecar.istio.io/inject: "false"}}
  - {name: overridden, command: [x], sidecar: true, labels: {sidecar.istio.io/inject: "false"}}
  - {name: gateway, type: gateway, labels: {sidecar.istio.io/inject: "false"}}
`))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, i := range AssignAddresses(top, LoopbackNetwork(80)) {
		if i.Workload.NoSidecar {
			got = append(got, i.Name+" "+i.Proxy.String()+" "+i.App.String()+" "+i.HTTPProxyURL())
		}
	}
	want := []string{"field 127.80.3.1 127.80.3.1 ", "label 127.80.4.1 127.80.4.1 ", "annotation 127.80.5.1 127.80.5.1 "}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// FuzzParse searches for files that crash or hang the parser, and for errors without a position.
func FuzzParse(f *testing.F) {
	f.Add([]byte(head + "spec: {config: a, network: 127.80.0.0/16, workloads: [" + okWorkload + "]}\n"))
	f.Add([]byte(head + "spec: {mesh: {defaultConfig: {concurrency: 1}}, workloads: [{name: g, type: gateway, ports: [{port: 1, publish: 2}]}]}\n"))
	f.Add([]byte("a: &a [*a]\n"))
	f.Add([]byte(head + "spec: &s {mesh: *s, workloads: []}\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		top, err := Parse("m.yaml", data)
		var invalid *InvalidError
		switch {
		case err == nil && (top == nil || top.Name == ""):
			t.Fatal("accepted a topology without a name")
		case err != nil && (!errors.As(err, &invalid) || len(invalid.Problems) == 0):
			t.Fatalf("refused without a problem: %v", err)
		}
	})
}

func TestDocumentedExampleIsValidTopology(t *testing.T) {
	doc, err := os.ReadFile(filepath.Join("..", "..", "docs", "topology.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(doc), "```yaml\n")
	example, _, found := strings.Cut(rest, "```")
	if !found {
		t.Fatal("the page has no example")
	}
	if top, err := Parse("docs/topology.md", []byte(example)); err != nil || len(top.Workloads) != 3 {
		t.Errorf("got %v", err)
	}
}

// Gateways determine the protocols of their ports, which can be plaintext or another TLS.
func TestOnlyEntriesWithSidecarHaveMeshTLSLabel(t *testing.T) {
	top, err := Parse("mesh.yaml", []byte(head+`spec:
  workloads:
  - {name: gate, type: gateway, serviceAccount: gate, ports: [{port: 8080}]}
  - {name: mutual, type: gateway, serviceAccount: gate, labels: {security.istio.io/tlsMode: istio}, ports: [{port: 8080}]}
  - {name: app, serviceAccount: app, command: [app], ports: [{port: 8080}]}
  - {name: plain, sidecar: false, serviceAccount: app, command: [app], ports: [{port: 8080}]}
`))
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]bool{}
	for _, r := range top.Registry().List(config.WorkloadEntry) {
		entry := r.Spec.(*networking.WorkloadEntry)
		got[entry.GetLabels()["app"]] = registry.HasSidecar(entry.GetLabels(), entry.GetServiceAccount())
	}
	if diff := cmp.Diff(map[string]bool{"gate": false, "mutual": true, "app": true, "plain": false}, got); diff != "" {
		t.Error(diff)
	}
}
