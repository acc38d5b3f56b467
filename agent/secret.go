package agent

import (
	"regexp"
	"strings"

	"github.com/pilotfish-mesh/pilotfish/internal/redact"
)

// notShown stands for a value that may be secret.
const notShown = "(not shown)"

// secretName matches names of settings whose values give power to who knows them.
var secretName = regexp.MustCompile(`(?i)(token|passw(or)?d|secret|credential|api_?key|access_?key|private_?key|authorization|passphrase|cookie|signing_?key|(^|_)(pass|auth))s?$`)

// shown is a value as it may be printed and logged: that of a setting by a telling name is left out, and so is
// what looks like one by itself. Names of files are no secrets.
func shown(name, value string) string {
	if value == "" || !secretName.MatchString(name) || strings.HasPrefix(value, "/") || strings.HasPrefix(value, "./") {
		return redact.Text(value)
	}
	return notShown
}

// withoutSecrets is a decoded JSON value with what is secret by its name replaced, however deep.
func withoutSecrets(value any) any {
	switch v := value.(type) {
	case map[string]any:
		clean := make(map[string]any, len(v))
		for name, inner := range v {
			if text, ok := inner.(string); ok {
				clean[name] = shown(name, text)
			} else {
				clean[name] = withoutSecrets(inner)
			}
		}
		return clean
	case []any:
		clean := make([]any, len(v))
		for i, inner := range v {
			clean[i] = withoutSecrets(inner)
		}
		return clean
	case string:
		return redact.Text(v)
	}
	return value
}
