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

// isSecret reports whether a setting of this name has a secret value. Names of metadata and labels are chosen by users,
// so a wider pattern applies to them.
func isSecret(name string) bool {
	free := strings.HasPrefix(name, "metadata.") || strings.HasPrefix(name, "label ")
	return secretName.MatchString(name) || free && redact.IsSecretSetting(name)
}

// maskValue returns a value for output. It masks the value of a setting with a secret name, and redacts text that looks
// like a secret. File paths are not secret.
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
