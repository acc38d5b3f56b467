package config

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// templateText is what Envoy takes as the plain text of one part of a template.
var templateText = regexp.MustCompile(`^[a-zA-Z0-9\-._~%!$&'()+,;:@=]+$`)

// maxTemplate is Envoy's bound of a template.
const maxTemplate = 256

// EnvoyPathTemplate gives a template of a path, as AuthorizationPolicies write it, in Envoy's form: "/a/{*}/{**}" is
// "/a/*/**". What is not of Envoy's grammar is an error: an Envoy that gets such a template ends itself.
func EnvoyPathTemplate(p string) (string, error) {
	rest, ok := strings.CutPrefix(p, "/")
	if !ok {
		return "", errors.New("it does not begin with a slash")
	}
	parts := strings.Split(rest, "/")
	last := false // {**} has come
	for i, part := range parts {
		switch {
		case part == "{*}" || part == "{**}":
			if last {
				return "", fmt.Errorf("%s stands behind {**}", part)
			}
			last = part == "{**}"
			parts[i] = strings.Trim(part, "{}")
		case part == "":
			return "", errors.New("it has an empty part, or a slash at its end")
		case !templateText.MatchString(part):
			return "", fmt.Errorf("the part %q is not {*}, {**} or text of letters, digits and -._~%%!$&'()+,;:@=", part)
		}
	}
	template := "/" + strings.Join(parts, "/")
	if len(template) > maxTemplate {
		return "", fmt.Errorf("without its braces it has %d bytes; at most %d are taken", len(template), maxTemplate)
	}
	return template, nil
}
