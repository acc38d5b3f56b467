package compare

import (
	"fmt"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/pilotfish-mesh/pilotfish/controlplane/translate"
)

// ParseProxy parses the description of a proxy that is not connected: "NAME.NAMESPACE", optionally with labels, as in
// "reviews-v1.shop:app=reviews,version=v1". The prefix "router/" specifies a gateway. The result is a proxy with
// redirection and the newest Envoy version.
func ParseProxy(text string) (*translate.Proxy, error) {
	kind, rest := "sidecar", text
	if name, ok := strings.CutPrefix(text, "router/"); ok {
		kind, rest = "router", name
	}
	id, list, _ := strings.Cut(rest, ":")
	name, namespace, ok := strings.Cut(id, ".")
	if !ok || name == "" || namespace == "" {
		return nil, fmt.Errorf("proxy %q is not of the form NAME.NAMESPACE:LABEL=VALUE,…", text)
	}
	labels := map[string]any{}
	for item := range strings.SplitSeq(list, ",") {
		key, value, ok := strings.Cut(item, "=")
		if !ok && item != "" {
			return nil, fmt.Errorf("proxy %q: the label %q has no value", text, item)
		}
		if key != "" {
			labels[key] = value
		}
	}
	metadata, err := structpb.NewStruct(map[string]any{"NAME": name, "NAMESPACE": namespace, "LABELS": labels})
	if err != nil {
		return nil, fmt.Errorf("proxy %q: %w", text, err)
	}
	p, err := translate.ParseProxy(&corev3.Node{
		Id: kind + "~198.18.0.1~" + id + "~" + namespace + ".svc.cluster.local", Metadata: metadata,
		UserAgentVersionType: &corev3.Node_UserAgentBuildVersion{UserAgentBuildVersion: &corev3.BuildVersion{
			Version: &typev3.SemanticVersion{MajorNumber: 1, MinorNumber: 40},
		}},
	}, "")
	if err != nil {
		return nil, err
	}
	p.Authenticated = true // only authenticated proxies receive Secrets
	p.UseVHDS = p.SupportsVHDS()
	return p, nil
}
