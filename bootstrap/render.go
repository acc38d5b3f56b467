package bootstrap

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	meshv1 "istio.io/api/mesh/v1alpha1"

	"github.com/pilotfish-mesh/pilotfish/internal/redact"
)

// notShown stands for a secret.
const notShown = "(not shown)"

// Render writes the bootstrap for people: with the names of enumerations, and without secrets. The same configuration
// gives the same bytes.
func Render(c Config) ([]byte, error) {
	c = withoutTokens(c)
	if c.changed() {
		t, err := changedTree(c)
		if err != nil {
			return nil, err
		}
		return indented(hide(t))
	}
	b, err := Build(c)
	if err != nil {
		return nil, err
	}
	if b.Node.Metadata, err = structpb.NewStruct(hide(b.GetNode().GetMetadata().AsMap()).(tree)); err != nil {
		return nil, fmt.Errorf("bootstrap: leaving secrets out of the node's metadata: %w", err)
	}
	return JSON(b)
}

// withoutTokens is the configuration without the secrets that this package would put into the bootstrap.
func withoutTokens(c Config) Config {
	if c.ProxyConfig.GetTracing().GetLightstep() != nil {
		c.ProxyConfig = proto.Clone(c.ProxyConfig).(*meshv1.ProxyConfig)
		hideText(&c.ProxyConfig.GetTracing().GetLightstep().AccessToken)
	}
	if c.TracingProvider == nil {
		return c
	}
	c.TracingProvider = proto.Clone(c.TracingProvider).(*meshv1.MeshConfig_ExtensionProvider)
	//lint:ignore SA1019 meshes that still have it rely on it
	if l := c.TracingProvider.GetLightstep(); l != nil {
		hideText(&l.AccessToken)
	}
	otel := c.TracingProvider.GetOpentelemetry()
	for _, h := range append(otel.GetHttp().GetHeaders(), otel.GetGrpc().GetInitialMetadata()...) {
		if v, ok := h.GetHeaderValue().(*meshv1.MeshConfig_ExtensionProvider_HttpHeader_Value); ok {
			hideText(&v.Value)
		}
	}
	return c
}

func hideText(s *string) {
	if *s != "" {
		*s = notShown
	}
}

// secretNames are parts of the names of fields and headers whose values are nobody's business.
var secretNames = []string{"private_key", "password", "passwd", "secret", "credential", "token", "session_ticket_keys", "authorization", "api-key", "apikey", "api_key", "access_key", "accesskey", "cookie"}

func isSecret(name string) bool {
	name = strings.ToLower(name)
	for _, part := range secretNames {
		if strings.Contains(name, part) {
			return true
		}
	}
	return false
}

// hide takes the secrets out of what somebody else wrote: what is given in place under a telling name, the values of
// headers with one, and what looks like a secret wherever it stands, as the password of a URL.
func hide(v any) any {
	switch v := v.(type) {
	case tree:
		shown := make(tree, len(v))
		header, _ := v["key"].(string)
		for name, value := range v {
			switch {
			case name == "value" && isSecret(header):
				shown[name] = notShown
			case isSecret(name):
				shown[name] = hideInline(value)
			default:
				shown[name] = hide(value)
			}
		}
		return shown
	case []any:
		shown := make([]any, len(v))
		for i, value := range v {
			shown[i] = hide(value)
		}
		return shown
	case string:
		return redact.Text(v)
	}
	return v
}

// hideInline hides a text and what a DataSource holds in place; the name of a file is no secret.
func hideInline(value any) any {
	switch value := value.(type) {
	case string:
		return notShown
	case tree:
		for _, inline := range []string{"inline_string", "inline_bytes"} {
			if _, has := value[inline]; has {
				return tree{inline: notShown}
			}
		}
	}
	return hide(value)
}

// Warnings are the settings that no Envoy of today can follow, each with what to do instead.
func Warnings(c Config) []string {
	return tracingWarnings(c)
}
