package mcp

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"
	mcpv1 "istio.io/api/mcp/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
	security "istio.io/api/security/v1beta1"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

func decoderOf(kind config.Kind) decoder {
	return newCollection(kind, "xds://source.example:15012", config.Parser{}).decoder
}

// pack returns a resource with this spec.
func pack(t testing.TB, name string, spec proto.Message) *anypb.Any {
	t.Helper()
	body, err := anypb.New(spec)
	if err != nil {
		t.Fatal(err)
	}
	return packResource(t, &mcpv1.Resource{Metadata: &mcpv1.Metadata{Name: name}, Body: body})
}

func packResource(t testing.TB, r *mcpv1.Resource) *anypb.Any {
	t.Helper()
	out, err := anypb.New(r)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestDocumentsOfTheExamplesAreDecodedUnchanged(t *testing.T) {
	var files []string
	err := filepath.WalkDir(filepath.Join(testenv.Root(), "examples"), func(path string, _ os.DirEntry, err error) error {
		if filepath.Ext(path) == ".yaml" {
			files = append(files, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	seen := map[config.Kind]int{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		resources, _ := config.Parse(file, text)
		for _, r := range resources {
			if r.Kind.NewSpec() == nil {
				continue
			}
			encoded, err := Encode(r)
			if err != nil {
				t.Fatal(err)
			}
			again, problems, _ := decoderOf(r.Kind).decode(ResourceName(r.Key), packResource(t, encoded))
			if !again.Equal(r) || !again.Created.Equal(r.Created) {
				t.Errorf("%s of %s is decoded as %v, %v", r.Key, file, again, problems)
			}
			seen[r.Kind]++
		}
	}
	if len(seen) < 4 {
		t.Errorf("the examples have few kinds: %v", seen)
	}
}

func TestInvalidDocumentsAreRefusedWithNameAndField(t *testing.T) {
	valid := &networking.VirtualService{Hosts: []string{"reviews"}, Http: []*networking.HTTPRoute{{Route: []*networking.HTTPRouteDestination{{Destination: &networking.Destination{Host: "reviews"}}}}}}
	unknown := proto.Clone(valid).(*networking.VirtualService)
	unknown.Http[0].ProtoReflect().SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 9999, protowire.VarintType), 1))
	weight := proto.Clone(valid).(*networking.VirtualService)
	weight.Http[0].Route[0].Weight = -1
	endless := proto.Clone(valid).(*networking.VirtualService)
	endless.Http[0].Fault = &networking.HTTPFaultInjection{Abort: &networking.HTTPFaultInjection_Abort{
		ErrorType: &networking.HTTPFaultInjection_Abort_HttpStatus{HttpStatus: 500}, Percentage: &networking.Percent{Value: math.Inf(1)},
	}}
	deep := structpb.NewBoolValue(true)
	for range 3000 {
		deep = structpb.NewListValue(&structpb.ListValue{Values: []*structpb.Value{deep}})
	}
	filter := &networking.EnvoyFilter{ConfigPatches: []*networking.EnvoyFilter_EnvoyConfigObjectPatch{{Patch: &networking.EnvoyFilter_Patch{Value: &structpb.Struct{Fields: map[string]*structpb.Value{"a": deep}}}}}}
	otherBody, err := anypb.New(&security.PeerAuthentication{})
	if err != nil {
		t.Fatal(err)
	}
	validBody, err := anypb.New(valid)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		kind     config.Kind
		resource string
		body     *anypb.Any
		want     []string
	}{
		"a value that the parser refuses": {config.VirtualService, "shop/reviews", pack(t, "shop/reviews", weight), []string{"VirtualService shop/reviews", "spec.http[0].route[0].weight", "-1"}},
		"a field of a later version":      {config.VirtualService, "shop/reviews", pack(t, "shop/reviews", unknown), []string{"VirtualService shop/reviews", "spec.http[0]: the document has a field"}},
		"an infinite number":              {config.VirtualService, "shop/f", pack(t, "shop/f", endless), []string{"VirtualService shop/f", "cannot be converted"}},
		"deep nesting":                    {config.EnvoyFilter, "shop/f", pack(t, "shop/f", filter), []string{"EnvoyFilter shop/f", "spec: the content is not a valid"}},
		"an unknown value of an enum":     {config.PeerAuthentication, "shop/p", pack(t, "shop/p", &security.PeerAuthentication{Mtls: &security.PeerAuthentication_MutualTLS{Mode: 77}}), []string{"PeerAuthentication shop/p", "spec.mtls.mode"}},
		"a spec of another kind":          {config.VirtualService, "shop/p", packResource(t, &mcpv1.Resource{Metadata: &mcpv1.Metadata{Name: "shop/p"}, Body: otherBody}), []string{"VirtualService shop/p", "body", "istio.networking.v1alpha3.VirtualService"}},
		"no spec":                         {config.VirtualService, "shop/p", packResource(t, &mcpv1.Resource{Metadata: &mcpv1.Metadata{Name: "shop/p"}}), []string{"VirtualService shop/p", "body"}},
		"another message":                 {config.VirtualService, "shop/p", otherBody, []string{"VirtualService shop/p", "the type of the resource is"}},
		"a name without a namespace":      {config.VirtualService, "p", pack(t, "p", valid), []string{"metadata.name", "NAMESPACE/NAME"}},
		"a name that is not one":          {config.VirtualService, "shop/a b", pack(t, "shop/a b", valid), []string{"metadata.name", "a b"}},
		"two names":                       {config.VirtualService, "shop/a", pack(t, "shop/b", valid), []string{"metadata.name", "differs"}},
		"a label that is not one":         {config.VirtualService, "shop/a", packResource(t, &mcpv1.Resource{Metadata: &mcpv1.Metadata{Name: "shop/a", Labels: map[string]string{"a b": "c"}}, Body: validBody}), []string{"VirtualService shop/a"}},
	} {
		r, problems, _ := decoderOf(c.kind).decode(c.resource, c.body)
		if r != nil {
			t.Errorf("%s is accepted", name)
			continue
		}
		reason := describeProblems(map[string][]config.Problem{"": problems})
		for _, want := range c.want {
			if !strings.Contains(reason, want) {
				t.Errorf("%s: the reason %q does not contain %q", name, reason, want)
			}
		}
	}
}

func TestTypeURLsAreThoseOfIstio(t *testing.T) {
	for kind, want := range map[config.Kind]string{
		config.VirtualService: "networking.istio.io/v1/VirtualService", config.EnvoyFilter: "networking.istio.io/v1alpha3/EnvoyFilter",
		config.ProxyConfig: "networking.istio.io/v1beta1/ProxyConfig", config.WasmPlugin: "extensions.istio.io/v1alpha1/WasmPlugin",
		config.AuthorizationPolicy: "security.istio.io/v1/AuthorizationPolicy", config.Telemetry: "telemetry.istio.io/v1/Telemetry",
	} {
		if got := TypeURL(kind); got != want {
			t.Errorf("%s: %s, not %s", kind, got, want)
		}
	}
	for _, url := range []string{"v1/Service", "v1/Secret", "networking.istio.io/v7/VirtualService", "security.istio.io/v1/VirtualService", "Service", ""} {
		if _, _, ok := ParseTypeURL(url); ok {
			t.Errorf("%s is a type of documents", url)
		}
	}
	if n := len(TypeURLs()); n < 30 {
		t.Errorf("only %d types", n)
	}
}

func TestDocumentsBeyondTheTotalSizeAreRefused(t *testing.T) {
	c := newCollection(config.VirtualService, "xds://source.example:15012", config.Parser{})
	a, b := route(t, "shop/a", "1", "a", 1), route(t, "shop/b", "1", "b", 1)
	size := len(a.GetResource().GetValue())
	responseOf := func(name, version string, body *anypb.Any) *update {
		return &update{typeURL: typeOfRoutes, resources: []namedResource{{name, version, body}}}
	}
	next, problems := c.validate(responseOf("shop/a", "1", a.GetResource()), time.Now(), size)
	if next == nil {
		t.Fatal(problems)
	}
	c.accept(responseOf("shop/a", "1", a.GetResource()), next)
	if next, problems = c.validate(responseOf("shop/b", "1", b.GetResource()), time.Now(), 2*size-1); next != nil || !strings.Contains(describeProblems(problems), "exceed the limit of 256 MiB") {
		t.Errorf("the second document is accepted: %v", problems)
	}
	longer := route(t, "shop/a", "2", "a.example", 1).GetResource()
	if next, problems = c.validate(responseOf("shop/a", "2", longer), time.Now(), len(longer.GetValue())); next == nil || next.size != len(longer.GetValue()) {
		t.Errorf("a new version is counted in addition to the former one: %v", problems)
	}
}
