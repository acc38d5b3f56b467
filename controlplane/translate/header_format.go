package translate

import (
	"regexp"
	"strings"
)

// headerFormat returns a header value that Envoy accepts. Envoy interprets %COMMAND% in header values. It rejects all
// routes if one value contains an unknown command or a single percent sign. headerFormat therefore escapes all percent
// signs that are not part of a known command.
func headerFormat(value string) string {
	var b strings.Builder
	for len(value) > 0 {
		i := strings.IndexByte(value, '%')
		if i < 0 {
			break
		}
		b.WriteString(value[:i])
		value = value[i:]
		token := "%%"
		if !strings.HasPrefix(value, token) {
			token = formatCommand(value)
		}
		if token == "" {
			b.WriteString("%%")
			value = value[1:]
			continue
		}
		b.WriteString(token)
		value = value[len(token):]
	}
	b.WriteString(value)
	return b.String()
}

var formatCommandPattern = regexp.MustCompile(`^%([A-Z0-9_]+)(\([^()]+\))?(:[0-9]{1,4})?%`)

// formatCommand returns the command at the start of text, including its percent signs. It returns "" unless all
// supported Envoy versions accept the command.
func formatCommand(text string) string {
	m := formatCommandPattern.FindStringSubmatch(text)
	if m == nil {
		return ""
	}
	arguments, known := formatCommands[m[1]]
	switch {
	case !known, arguments == mustHave && m[2] == "", arguments == mustNotHave && m[2]+m[3] != "":
		return ""
	}
	return m[0]
}

// Constants that specify whether a command has arguments in parentheses.
const (
	mustNotHave = iota
	mustHave
	mayHave
)

var formatCommands = map[string]int{
	"REQ": mustHave, "RESP": mustHave, "DYNAMIC_METADATA": mustHave, "CLUSTER_METADATA": mustHave, "UPSTREAM_METADATA": mustHave,
	"FILTER_STATE": mustHave, "ENVIRONMENT": mustHave, "START_TIME": mayHave,
	"PROTOCOL": mustNotHave, "UPSTREAM_PROTOCOL": mustNotHave, "RESPONSE_CODE": mustNotHave, "RESPONSE_CODE_DETAILS": mustNotHave,
	"RESPONSE_FLAGS": mustNotHave, "CONNECTION_TERMINATION_DETAILS": mustNotHave, "BYTES_RECEIVED": mustNotHave, "BYTES_SENT": mustNotHave,
	"DURATION": mustNotHave, "REQUEST_DURATION": mustNotHave, "RESPONSE_DURATION": mustNotHave, "HOSTNAME": mustNotHave,
	"ROUTE_NAME": mustNotHave, "VIRTUAL_CLUSTER_NAME": mustNotHave, "REQUESTED_SERVER_NAME": mustNotHave, "CONNECTION_ID": mustNotHave,
	"STREAM_ID": mustNotHave, "UPSTREAM_REQUEST_ATTEMPT_COUNT": mustNotHave, "UPSTREAM_TRANSPORT_FAILURE_REASON": mustNotHave,
	"UPSTREAM_HOST": mustNotHave, "UPSTREAM_CLUSTER": mustNotHave, "UPSTREAM_CLUSTER_RAW": mustNotHave,
	"UPSTREAM_LOCAL_ADDRESS": mustNotHave, "UPSTREAM_LOCAL_ADDRESS_WITHOUT_PORT": mustNotHave, "UPSTREAM_LOCAL_PORT": mustNotHave,
	"UPSTREAM_REMOTE_ADDRESS": mustNotHave, "UPSTREAM_REMOTE_ADDRESS_WITHOUT_PORT": mustNotHave, "UPSTREAM_REMOTE_PORT": mustNotHave,
	"DOWNSTREAM_REMOTE_ADDRESS": mustNotHave, "DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT": mustNotHave, "DOWNSTREAM_REMOTE_PORT": mustNotHave,
	"DOWNSTREAM_DIRECT_REMOTE_ADDRESS": mustNotHave, "DOWNSTREAM_DIRECT_REMOTE_ADDRESS_WITHOUT_PORT": mustNotHave,
	"DOWNSTREAM_LOCAL_ADDRESS": mustNotHave, "DOWNSTREAM_LOCAL_ADDRESS_WITHOUT_PORT": mustNotHave, "DOWNSTREAM_LOCAL_PORT": mustNotHave,
	"DOWNSTREAM_LOCAL_URI_SAN": mustNotHave, "DOWNSTREAM_LOCAL_DNS_SAN": mustNotHave, "DOWNSTREAM_LOCAL_SUBJECT": mustNotHave,
	"DOWNSTREAM_PEER_URI_SAN": mustNotHave, "DOWNSTREAM_PEER_DNS_SAN": mustNotHave, "DOWNSTREAM_PEER_SUBJECT": mustNotHave,
	"DOWNSTREAM_PEER_ISSUER": mustNotHave, "DOWNSTREAM_PEER_SERIAL": mustNotHave, "DOWNSTREAM_PEER_CERT": mustNotHave,
	"DOWNSTREAM_PEER_FINGERPRINT_256": mustNotHave, "DOWNSTREAM_PEER_FINGERPRINT_1": mustNotHave, "DOWNSTREAM_TLS_SESSION_ID": mustNotHave,
	"DOWNSTREAM_TLS_CIPHER": mustNotHave, "DOWNSTREAM_TLS_VERSION": mustNotHave, "DOWNSTREAM_PEER_CERT_V_START": mayHave,
	"DOWNSTREAM_PEER_CERT_V_END": mayHave,
}
