package translate_test

import (
	"encoding/json"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/pilotfish-mesh/pilotfish/controlplane/translate"
)

func TestParseProxyReadsAgentNode(t *testing.T) {
	n := node(t, "sidecar reviews-v1.shop 127.77.3.1 app=reviews SERVICE_ACCOUNT=reviews UPSTREAM_LISTENERS=mysql.shop:3306=127.77.3.16:3306,b:80=127.77.3.17:81 POD_PORTS=[{\"name\":\"web\",\"containerPort\":9080}]")
	p, err := translate.ParseProxy(n, "spiffe://cluster.local/ns/shop/sa/reviews")
	if err != nil {
		t.Fatal(err)
	}
	if p.Type != translate.Sidecar || p.Name != "reviews-v1" || p.Namespace != "shop" || p.ServiceAccount != "reviews" || p.Labels["app"] != "reviews" ||
		p.Address.String() != "127.77.3.1" || p.AppAddress.String() != "127.77.3.2" || p.Interception != translate.None || p.PodPorts["web"] != 9080 {
		t.Errorf("%+v", p)
	}
	if len(p.Upstreams) != 2 || p.Upstreams[0].Host != "mysql.shop" || p.Upstreams[0].Port != 3306 || p.Upstreams[1].Listen.String() != "127.77.3.17:81" {
		t.Errorf("upstreams: %+v", p.Upstreams)
	}
	r := proxy(t, "router ingress.edge 127.77.9.1 istio=ingress PUBLISH=8080=127.0.0.1:80,8443=[::1]:443")
	if r.Type != translate.Router || r.Publish[8080].String() != "127.0.0.1:80" || r.Publish[8443].String() != "[::1]:443" {
		t.Errorf("%+v", r)
	}
}

func TestProxyWithOtherIdentityIsRefused(t *testing.T) {
	for description, identity := range map[string]string{
		"sidecar x.shop 127.0.0.9 app=x":                         "spiffe://cluster.local/ns/other/sa/x",
		"sidecar x.shop 127.0.0.9 app=x SERVICE_ACCOUNT=another": "spiffe://cluster.local/ns/shop/sa/x",
		"router x.shop 127.0.0.9 istio=x":                        "spiffe://cluster.local/something",
	} {
		if _, err := translate.ParseProxy(node(t, description), identity); err == nil || !strings.Contains(err.Error(), identity) {
			t.Errorf("%s as %s: %v", description, identity, err)
		}
	}
}

func TestParseProxyErrorsNameRemedy(t *testing.T) {
	for want, n := range map[string]*corev3.Node{
		"is not of the form type~address~name.namespace~domain":                      {Id: "envoy"},
		"use sidecar or router":                                                      {Id: "ztunnel~1.2.3.4~a.b~c"},
		"ParseAddr":                                                                  {Id: "sidecar~x~a.b~c"},
		"must send the namespace":                                                    {Id: "sidecar~1.2.3.4~a~c"},
		"set ISTIO_META_INTERCEPTION_MODE to NONE or REDIRECT":                       node(t, "sidecar a.b 127.0.0.9 INTERCEPTION_MODE=TPROXY"),
		"set ISTIO_META_APP_ADDRESS":                                                 node(t, "sidecar a.b 127.0.0.9 APP_ADDRESS=127.0.0.9"),
		"metadata field APP_ADDRESS":                                                 node(t, "sidecar a.b 127.0.0.9 APP_ADDRESS=app"),
		"is not of the form host:port=address:port":                                  node(t, "sidecar a.b 127.0.9.1 UPSTREAM_LISTENERS=mysql"),
		"is not of the form port=address:port":                                       node(t, "router a.b 127.0.0.9 PUBLISH=8080"),
		"metadata field INSTANCE_IPS":                                                node(t, "router a.b 127.0.0.9 INSTANCE_IPS=host"),
		"the metadata field WORKLOAD_NAME has 254 bytes":                             node(t, "sidecar a.b 127.0.9.1 WORKLOAD_NAME="+strings.Repeat("a", 254)),
		"metadata field POD_PORTS":                                                   node(t, "sidecar a.b 127.0.9.1 POD_PORTS={"),
		`the node ID contains "prod", but the metadata field NAMESPACE is "default"`: {Id: "sidecar~1.2.3.4~x.prod~d", Metadata: &structpb.Struct{Fields: map[string]*structpb.Value{"NAMESPACE": structpb.NewStringValue("default")}}},
		`the node ID contains "x", but the metadata field NAME is "y"`:               {Id: "sidecar~1.2.3.4~x.prod~d", Metadata: &structpb.Struct{Fields: map[string]*structpb.Value{"NAME": structpb.NewStringValue("y")}}},
		"metadata field LABELS":                                                      {Id: "sidecar~1.2.3.4~a.b~c", Metadata: &structpb.Struct{Fields: map[string]*structpb.Value{"LABELS": structpb.NewStringValue("x")}}},
	} {
		if _, err := translate.ParseProxy(n, ""); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: the error %v does not contain %q", n.GetId(), err, want)
		}
	}
	if _, err := translate.ParseProxy(nil, ""); err == nil {
		t.Error("ParseProxy accepts a missing node")
	}
}

// FuzzNode checks that ParseProxy returns an error or a usable proxy for any node.
func FuzzNode(f *testing.F) {
	f.Add("sidecar~127.0.0.9~a.b~c", "NONE", "127.0.0.10", "a.b:1=127.0.0.11:1", "8080=127.0.0.1:1", `[{"name":"a","containerPort":1}]`)
	f.Add("router~::1~a.b~c", "", "", "", "0=[::1]:0", "null")
	f.Add("sidecar~10.0.0.1~a~c", "REDIRECT", "", "x:=", "=", "{}")
	m := newTestMesh(f, nil, affectedMesh, affectedSteps[0])
	f.Fuzz(func(t *testing.T, id, interception, app, upstreams, publish, ports string) {
		fields := map[string]any{
			"NAMESPACE": "one", "LABELS": map[string]any{"app": "a"}, "INTERCEPTION_MODE": interception, "APP_ADDRESS": app,
			"UPSTREAM_LISTENERS": upstreams, "PUBLISH": publish, "POD_PORTS": ports,
		}
		data, err := json.Marshal(fields) // converts strings to valid UTF-8, because all strings in protobuf messages are
		if err != nil {
			return // a node cannot contain this text
		}
		s := &structpb.Struct{}
		if err := s.UnmarshalJSON(data); err != nil {
			return // a node cannot contain this text
		}
		p, err := translate.ParseProxy(&corev3.Node{Id: strings.ToValidUTF8(id, ""), Metadata: s}, "")
		if err != nil {
			return
		}
		for _, typeURL := range shown {
			if _, err := generate(m.snap, p, typeURL, nil); err != nil {
				t.Errorf("%s: %v", typeURL, err)
			}
		}
	})
}
