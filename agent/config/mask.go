package config

import (
	"regexp"
	"strings"

	"github.com/pilotfish-mesh/pilotfish/internal/redact"
)

// maskedValue replaces a value that may be secret.
const maskedValue = "(not shown)"

// secretName matches the names of settings with secret values.
var secretName = regexp.MustCompile(`(?i)(token|passw(or)?d|secret|credential|api_?key|access_?key|private_?key|authorization|passphrase|cookie|signing_?key|(^|_)(pass|auth))s?$`)

// isSecret reports whether the value of a setting with this name is secret. For metadata and labels, whose names users
// choose, it applies a wider pattern.
func isSecret(name string) bool {
	userDefined := strings.HasPrefix(name, "metadata.") || strings.HasPrefix(name, "label ")
	return secretName.MatchString(name) || userDefined && redact.IsSecretSetting(name)
}

// maskValue returns the value of a setting for output. It masks the whole value if the name indicates a secret and the
// value is not a file path. In other values, it redacts only text that looks like a secret.
func maskValue(name, value string) string {
	if value == "" || !isSecret(name) || strings.HasPrefix(value, "/") || strings.HasPrefix(value, "./") {
		return redact.Text(value)
	}
	return maskedValue
}

// maskJSON returns a decoded JSON value with its secrets masked at any depth.
func maskJSON(value any) any {
	switch v := value.(type) {
	case map[string]any:
		clean := make(map[string]any, len(v))
		for name, inner := range v {
			if text, ok := inner.(string); ok {
				clean[name] = maskValue(name, text)
			} else {
				clean[name] = maskJSON(inner)
			}
		}
		return clean
	case []any:
		clean := make([]any, len(v))
		for i, inner := range v {
			clean[i] = maskJSON(inner)
		}
		return clean
	case string:
		return redact.Text(v)
	}
	return value
}
