package config

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	networking "istio.io/api/networking/v1alpha3"
)

func readSample(t testing.TB, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", "samples", name))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func samples(t testing.TB) []string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join("testdata", "samples"))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// withSeverity returns the problems with one of the severities.
func withSeverity(problems []Problem, severities ...Severity) (out []Problem) {
	for _, p := range problems {
		for _, s := range severities {
			if p.Severity == s {
				out = append(out, p)
			}
		}
	}
	return out
}

func TestDocumentsOfTheUsualShapeParse(t *testing.T) {
	want := map[string]string{
		"bookstore.yaml": "Service default/catalogue, Service default/stars, Service istio-system/shop-gateway, Service default/store-db, Service default/payments",
		"routing.yaml":   "VirtualService default/stars, DestinationRule default/stars, Gateway shop/front-door, VirtualService default/db",
		"services.yaml": "ServiceEntry default/search, ServiceEntry default/mongo, ServiceEntry default/everything-of, ServiceEntry default/socket, " +
			"ServiceEntry default/machines, WorkloadEntry default/machine-1, Sidecar shop/default",
		"security.yaml": "PeerAuthentication istio-system/default, PeerAuthentication shop/finance, PeerAuthentication default/inherits, " +
			"AuthorizationPolicy shop/allow-nothing, AuthorizationPolicy default/stars-viewer, AuthorizationPolicy default/no-writes, " +
			"RequestAuthentication default/jwt",
		"list.json": "Service default/from-json, WorkloadEntry default/from-json",
	}
	for _, name := range samples(t) {
		t.Run(name, func(t *testing.T) {
			resources, problems := Parse(name, readSample(t, name))
			for _, p := range withSeverity(problems, Error) {
				t.Error(p)
			}
			var keys []string
			for _, r := range resources {
				keys = append(keys, r.Key.String())
			}
			if got := strings.Join(keys, ", "); got != want[name] {
				t.Errorf("got  %s\nwant %s", got, want[name])
			}
		})
	}
}

// This package and Istio's own decoder must decode every sample to the same message.
func TestSpecsMeanWhatIstiosDecoderReads(t *testing.T) {
	compared := 0
	for _, name := range samples(t) {
		resources, _ := Parse(name, readSample(t, name))
		for i, spec := range rawSpecs(t, name) {
			for _, r := range resources {
				got, ok := r.Spec.(proto.Message)
				if !ok || r.Key != i {
					continue
				}
				want := got.ProtoReflect().New().Interface()
				if err := want.(json.Unmarshaler).UnmarshalJSON(spec); err != nil {
					t.Errorf("%s: Istio's decoder refuses the sample: %v", r.Key, err)
				}
				if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
					t.Errorf("%s is decoded differently (-Istio +pilotfish):\n%s", r.Key, diff)
				}
				compared++
			}
		}
	}
	if compared < 15 {
		t.Errorf("the test compared only %d specs", compared)
	}
}

func rawSpecs(t *testing.T, name string) map[Key][]byte {
	t.Helper()
	specs := map[Key][]byte{}
	dec := yaml.NewDecoder(strings.NewReader(string(readSample(t, name))))
	if strings.HasSuffix(name, ".json") {
		return nil // other samples contain the same kinds
	}
	for {
		var doc struct {
			Kind     string
			Metadata struct{ Name, Namespace string }
			Spec     any
		}
		if err := dec.Decode(&doc); err != nil {
			return specs
		}
		if doc.Metadata.Namespace == "" {
			doc.Metadata.Namespace = "default"
		}
		raw, err := json.Marshal(stringKeys(doc.Spec))
		if err != nil {
			t.Fatal(err)
		}
		specs[Key{Kind(doc.Kind), doc.Metadata.Namespace, doc.Metadata.Name}] = raw
	}
}

func stringKeys(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k := range v {
			v[k] = stringKeys(v[k])
		}
	case map[any]any:
		out := map[string]any{}
		for k, x := range v {
			key, _ := json.Marshal(k)
			out[strings.Trim(string(key), `"`)] = stringKeys(x)
		}
		return out
	case []any:
		for i := range v {
			v[i] = stringKeys(v[i])
		}
	}
	return v
}

func TestServiceIsReadAsKubernetesDoes(t *testing.T) {
	resources, problems := Parse("s.yaml", readSample(t, "bookstore.yaml"))
	if errs := withSeverity(problems, Error, Warning); len(errs) > 0 {
		t.Error(errs)
	}
	want := &ServiceSpec{
		Type: "ClusterIP", ClusterIP: "10.96.14.7", ClusterIPs: []string{"10.96.14.7", "fd00::e07"}, Selector: map[string]string{"app": "stars"},
		Ports: []ServicePort{
			{Name: "http-web", Protocol: "TCP", AppProtocol: "http", Port: 80, TargetPort: 9080},
			{Name: "metrics", Protocol: "TCP", Port: 9100, TargetPortName: "prom"},
		},
		PublishNotReadyAddresses: true,
	}
	if diff := cmp.Diff(want, resources[1].Spec); diff != "" {
		t.Error(diff)
	}
	if r := resources[1]; r.Annotations["prometheus.io/scrape"] != "true" || r.APIVersion != "v1" {
		t.Errorf("the metadata is %+v", r)
	}
	if name := resources[4].Spec.(*ServiceSpec).ExternalName; name != "api.payments.example.com" {
		t.Errorf("the external name is %q", name)
	}
}

func TestPositionsOfFields(t *testing.T) {
	data := readSample(t, "routing.yaml")
	resources, _ := Parse("routing.yaml", data)
	lines := strings.Split(string(data), "\n")
	for path, text := range map[string]string{
		"spec.http[0].fault.delay.fixedDelay":   "7s",
		"spec.http[2].route[1].weight":          "90",
		"spec.http[2].retries":                  "retries:",
		"spec.http[0].match[0].headers[x-beta]": "x-beta:",
		// The value is an alias; the position is where the value is written.
		"spec.http[2].route[0].destination.host":  "stars",
		"spec.http[2].route[0].destination.subet": "destination: *newest",
		"spec.gateways[1]":                        "shop/front-door",
		"metadata.annotations":                    "annotations:",
	} {
		at := resources[0].PositionOf(path)
		if at.File != "routing.yaml" || at.Line == 0 || !strings.HasPrefix(lines[at.Line-1][at.Column-1:], text) {
			t.Errorf("%s has the position %s", path, at)
		}
	}
	if at := resources[1].Origin; lines[at.Line-1] != "apiVersion: networking.istio.io/v1" {
		t.Errorf("the second document begins at %s", at)
	}
}

const (
	good  = "apiVersion: v1\nkind: Service\nmetadata: {name: good}\nspec: {selector: {app: a}, ports: [{port: 80}]}\n"
	good2 = "apiVersion: v1\nkind: Service\nmetadata: {name: good2}\nspec: {selector: {app: a}, ports: [{port: 80}]}\n"
)

func TestBadDocumentIsRefusedAlone(t *testing.T) {
	for name, bad := range map[string]string{
		"indentation":       "a:\n  b: 1\n c: 2\n",
		"tab":               "a:\n\tb: 1\n",
		"open bracket":      "a: [1, 2\nb: 3\n",
		"open quote":        "a: \"b\nc: d\n",
		"unknown anchor":    "a: *nowhere\n",
		"control":           "a: \x01\n",
		"no resource":       "just text\n",
		"a list":            "- a\n- b\n",
		"a duplicate field": "apiVersion: v1\nkind: Service\nkind: Service\nmetadata: {name: x}\nspec: {ports: [{port: 80}]}\n",
	} {
		t.Run(name, func(t *testing.T) {
			resources, problems := Parse("f.yaml", []byte(good+"---\n"+bad+"---\n"+good2))
			if len(resources) != 2 || resources[1].Origin.Line < 7 {
				t.Errorf("resources %v, problems %v", resources, problems)
			}
			if len(problems) != 1 || problems[0].Severity != Error || problems[0].At.Line < 6 || problems[0].Remedy == "" {
				t.Errorf("problems %v", problems)
			}
		})
	}
}

func TestSyntaxErrorsHaveLineNumbers(t *testing.T) {
	for text, want := range map[string]string{
		"a: 1\nb: 2\nc: d: e\nf: 1\n":   `f.yaml:3: error: "c: d: e": not YAML: a colon where no field can begin`,
		"a:\n  b: 1\n c: 2\nd: 3\n":     `f.yaml:3: error: "c: 2": not YAML: the indentation does not fit`,
		"a:\n  - b\n  c: 2\n":           `f.yaml:3: error: "c: 2": not YAML: a field among the items of a list`,
		"x: y\na:\n\tb: 3\n":            `f.yaml:3:1: error: "b: 3": not YAML: a tab in the indentation`,
		"a: 1\nb: [1,2\nc: 3\n":         `f.yaml:2: error: "b: [1,2": not YAML: a list in brackets is not closed`,
		"a: 1\nb\nc: 2\n":               `f.yaml:2: error: "b": not YAML: a line has no colon`,
		"---\n# a\n---\na: 1\nb: @c\n":  `f.yaml:5: error: "b: @c": not YAML: a value cannot begin with this character`,
		"a: b\nc: \xff\n":               `f.yaml:2:4: error: not UTF-8 text`,
		"a: &x [1]\nb: *y\n":            `f.yaml:2: error: "b: *y": not YAML: unknown anchor`,
		"a: \"b\nc: 1\nd: 2\ne: 3\nf: ": `f.yaml:1: error: "a: \"b": not YAML: a quote is not closed`,
	} {
		_, problems := Parse("f.yaml", []byte(text))
		if len(problems) != 1 || !strings.HasPrefix(problems[0].String(), want) {
			t.Errorf("%q:\ngot  %v\nwant %s", text, problems, want)
		}
	}
}

func TestFilesOfAllFormsParse(t *testing.T) {
	for name, text := range map[string]string{
		"byte order mark":     "\ufeff" + good,
		"windows line ends":   strings.ReplaceAll(good+"---\n"+good2, "\n", "\r\n"),
		"no last line end":    strings.TrimSuffix(good, "\n"),
		"directive":           "%YAML 1.1\n---\n" + good,
		"document end":        good + "...\n---\n" + good2 + "...\n",
		"empty documents":     "---\n---\n# nothing\n---\n" + good + "---\n\n",
		"comment at marker":   "--- # first\n" + good + "--- # second\n" + good2,
		"flow at marker":      "--- {apiVersion: v1, kind: Service, metadata: {name: good}, spec: {ports: [{port: 80}]}}\n",
		"flow over lines":     "{apiVersion: v1, kind: Service,\n metadata: {name: good},\n spec: {ports: [{port: 80}]}}\n",
		"JSON":                `{"apiVersion":"v1","kind":"Service","metadata":{"name":"good"},"spec":{"ports":[{"port":80}]}}`,
		"JSON documents":      `{"apiVersion":"v1","kind":"Service","metadata":{"name":"good"},"spec":{"ports":[{"port":80}]}}` + "\n" + `{"apiVersion":"v1","kind":"Service","metadata":{"name":"g2"},"spec":{"ports":[{"port":80}]}}`,
		"dashes in a text":    "apiVersion: v1\nkind: Service\nmetadata:\n  name: good\n  annotations:\n    text: |\n      ---\n      a\nspec: {ports: [{port: 80}]}\n",
		"list in a list":      "apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: ServiceList\n  items:\n  - {apiVersion: v1, kind: Service, metadata: {name: good}, spec: {ports: [{port: 80}]}}\n",
		"null where optional": "apiVersion: v1\nkind: Service\nmetadata: {name: good, labels: null, creationTimestamp: null}\nspec: {ports: [{port: 80, targetPort: null}], clusterIP: ~}\nstatus: {anything: [goes]}\n",
	} {
		t.Run(name, func(t *testing.T) {
			resources, problems := Parse("f", []byte(text))
			if errs := withSeverity(problems, Error); len(errs) > 0 || len(resources) == 0 || resources[0].Name != "good" {
				t.Errorf("resources %v, problems %v", resources, problems)
			}
		})
	}
}

func TestJSONPositionsAreExact(t *testing.T) {
	_, problems := Parse("f.json", []byte("{\n\t\"apiVersion\": \"v1\",\n\t\"kind\": \"Service\", \"metadata\": {\"name\": \"é\"},\n\t\"spec\": {\"ports\": [{\"prot\": 80}]}\n}\n"))
	var places []string
	for _, p := range problems {
		places = append(places, p.At.String()+" "+p.Field)
	}
	want := []string{"f.json:3:42 metadata.name", "f.json:4:22 spec.ports[0].prot"}
	if diff := cmp.Diff(want, places); diff != "" {
		t.Error(diff, problems)
	}
}

func TestMergeKeysAndAnchorsAreFollowed(t *testing.T) {
	resources, _ := Parse("routing.yaml", readSample(t, "routing.yaml"))
	dr := resources[1].Spec.(*networking.DestinationRule)
	if got := dr.GetSubsets()[1].GetLabels(); got["app"] != "stars" || got["version"] != "v3" {
		t.Errorf("merged labels are %v", got)
	}
	vs := resources[0].Spec.(*networking.VirtualService)
	if got := vs.GetHttp()[2].GetRoute()[0].GetDestination().GetSubset(); got != "v3" {
		t.Errorf("the YAML alias resolves to subset %q", got)
	}
}

func TestNamespaceDefaults(t *testing.T) {
	resources, _ := Parser{DefaultNamespace: "shop"}.Parse("f", []byte(good))
	if len(resources) != 1 || resources[0].Namespace != "shop" {
		t.Errorf("got %v", resources)
	}
}

func TestCreationTimeOfAnExportedDocumentIsUsed(t *testing.T) {
	resources, _ := Parse("routing.yaml", readSample(t, "routing.yaml"))
	if got := resources[0].Created.UTC().Format("2006-01-02"); got != "2024-03-01" {
		t.Errorf("created %s", got)
	}
	if !resources[1].Created.IsZero() {
		t.Errorf("a document without creationTimestamp has %s", resources[1].Created)
	}
}

func TestDuplicateDocumentProblemNamesBothPositions(t *testing.T) {
	resources, problems := Parse("f.yaml", []byte(good+"---\n"+good))
	if len(resources) != 1 || resources[0].Origin.Line != 1 {
		t.Errorf("resources %v", resources)
	}
	if len(problems) != 1 || problems[0].At.Line != 8 || !strings.Contains(problems[0].Message, "f.yaml:1:1") {
		t.Errorf("problems %v", problems)
	}
}
