package config

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// templateText matches what Envoy accepts as the literal text of one path segment.
var templateText = regexp.MustCompile(`^[a-zA-Z0-9\-._~%!$&'()+,;:@=]+$`)

// maxTemplate is Envoy's limit for the length of a template.
const maxTemplate = 256

// EnvoyPathTemplate converts a path template of an AuthorizationPolicy to Envoy's form: "/a/{*}/{**}" becomes
// "/a/*/**". It fails if p does not match Envoy's grammar, because an invalid template would crash Envoy.
func EnvoyPathTemplate(p string) (string, error) {
	rest, ok := strings.CutPrefix(p, "/")
	if !ok {
		return "", errors.New("the path does not begin with a slash")
	}
	parts := strings.Split(rest, "/")
	last := false // {**} was found
	for i, part := range parts {
		switch {
		case part == "{*}" || part == "{**}":
			if last {
				return "", fmt.Errorf("the part %s follows {**}", part)
			}
			last = part == "{**}"
			parts[i] = strings.Trim(part, "{}")
		case part == "":
			return "", errors.New("the path has an empty part, or a slash at its end")
		case !templateText.MatchString(part):
			return "", fmt.Errorf("the part %q is not {*}, {**} or text of letters, digits and -._~%%!$&'()+,;:@=", part)
		}
	}
	template := "/" + strings.Join(parts, "/")
	if len(template) > maxTemplate {
		return "", fmt.Errorf("without its braces, the path has %d bytes; at most %d are allowed", len(template), maxTemplate)
	}
	return template, nil
}
