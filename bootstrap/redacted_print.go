package bootstrap

import (
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	meshv1 "istio.io/api/mesh/v1alpha1"

	"github.com/pilotfish-mesh/pilotfish/internal/redact"
)

// redactedValue is printed in place of a secret.
const redactedValue = "(not shown)"

// Render returns the bootstrap for users to read, with the names of enumeration values and without secrets. The output
// is deterministic.
func Render(c Config) ([]byte, error) {
	c = withoutTokens(c)
	if c.isCustomized() {
		t, _, err := customizedTree(c)
		if err != nil {
			return nil, err
		}
		return marshalIndented(hide(t))
	}
	b, err := Build(c)
	if err != nil {
		return nil, err
	}
	if b.Node.Metadata, err = structpb.NewStruct(hide(b.GetNode().GetMetadata().AsMap()).(tree)); err != nil {
		return nil, fmt.Errorf("bootstrap: removing secrets from the node metadata: %w", err)
	}
	return JSON(b)
}

// withoutTokens returns the configuration without the secrets that this package would write to the bootstrap.
func withoutTokens(c Config) Config {
	hideText(&c.AgentSecret)
	if c.ProxyConfig.GetTracing().GetLightstep() != nil {
		c.ProxyConfig = proto.Clone(c.ProxyConfig).(*meshv1.ProxyConfig)
		hideText(&c.ProxyConfig.GetTracing().GetLightstep().AccessToken)
	}
	if c.TracingProvider == nil {
		return c
	}
	c.TracingProvider = proto.Clone(c.TracingProvider).(*meshv1.MeshConfig_ExtensionProvider)
	//lint:ignore SA1019 some meshes still use this deprecated provider
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
		*s = redactedValue
	}
}

// secretNames are parts of names. Fields and headers whose names contain them are treated as secret.
var secretNames = []string{"private_key", "password", "passwd", "secret", "credential", "token", "session_ticket_keys", "authorization", "api-key", "apikey", "api_key", "access_key", "accesskey", "cookie"}

func isSecret(name string) bool {
	// An upper-case name is that of an entry in the node's metadata.
	if name == strings.ToUpper(name) && redact.IsSecretSetting(name) {
		return true
	}
	name = strings.ToLower(name)
	for _, part := range secretNames {
		if strings.Contains(name, part) {
			return true
		}
	}
	return false
}

// hide returns a copy of the user's configuration without secrets. These are inline data and header values whose name
// matches secretNames, and text that looks like a secret, such as the password in a URL.
func hide(v any) any {
	switch v := v.(type) {
	case tree:
		shown := make(tree, len(v))
		header, _ := v["key"].(string)
		for name, value := range v {
			switch {
			case name == "value" && isSecret(header):
				shown[name] = redactedValue
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

// hideInline replaces a string, or the inline data of a DataSource. It does not replace file names, which are not
// secret.
func hideInline(value any) any {
	switch value := value.(type) {
	case string:
		return redactedValue
	case tree:
		for _, inline := range []string{"inline_string", "inline_bytes"} {
			if _, has := value[inline]; has {
				return tree{inline: redactedValue}
			}
		}
	}
	return hide(value)
}

// Warnings returns a warning with a remedy for each setting that has no effect.
func Warnings(c Config) []string {
	_, connections := maxConnections(c)
	warnings := slices.Concat(tracingWarnings(c), statsWarnings(c), connections)
	if c.isCustomized() {
		_, unknown, _ := customizedTree(c) // when the agent writes the bootstrap, it reports the error
		warnings = append(warnings, unknown...)
	}
	return warnings
}
