package config

import (
	"fmt"
	"regexp"
	"strings"
)

// maxLogFormat limits the size of one format text, in bytes.
const maxLogFormat = 16384

// CheckLogFormat checks that all supported Envoy versions know the access log commands in format (%REQ(:METHOD)%).
// Envoy refuses the whole resource if it does not know a command.
func CheckLogFormat(format string) error {
	if len(format) > maxLogFormat {
		return fmt.Errorf("it has %d characters; at most %d are allowed", len(format), maxLogFormat)
	}
	for {
		i := strings.IndexByte(format, '%')
		if i < 0 {
			return nil
		}
		format = format[i:]
		if strings.HasPrefix(format, "%%") {
			format = format[2:]
			continue
		}
		command := logCommandPattern.FindStringSubmatch(format)
		if command == nil {
			return fmt.Errorf("%q does not begin a command: write %%%% for a literal percent sign", clipCommand(format, 24))
		}
		if err := checkLogCommand(command[1], command[2], command[3]); err != nil {
			return fmt.Errorf("%s: %w", clipCommand(command[0], 80), err)
		}
		format = format[len(command[0]):]
	}
}

var logCommandPattern = regexp.MustCompile(`^%([A-Z0-9_]+)(\(.*?\))?(:[0-9]{1,5})?%`)

func clipCommand(text string, most int) string {
	if len(text) > most {
		return text[:most] + "…"
	}
	return text
}

func checkLogCommand(name, arguments, length string) error {
	takes, known := logCommands[name]
	inner := strings.TrimSuffix(strings.TrimPrefix(arguments, "("), ")")
	switch {
	case !known:
		return fmt.Errorf("not all proxies know this command")
	case takes == noArguments && arguments != "":
		return fmt.Errorf("it accepts no arguments")
	case takes == noArguments && length != "":
		return fmt.Errorf("its length cannot be limited")
	case takes >= someArguments && inner == "":
		return fmt.Errorf("it needs arguments")
	case strings.ContainsAny(arguments, "\r\n\x00"):
		return fmt.Errorf("its arguments must not have line breaks")
	case takes == headerArguments:
		return checkHeaderArgument(inner)
	case takes == filterStateArguments && !filterStateArgument.MatchString(inner):
		return fmt.Errorf("it needs a key, and optionally PLAIN or TYPED after a colon")
	case name == "CEL":
		return CheckCEL(inner)
	}
	return nil
}

var (
	headerArgument      = regexp.MustCompile(`^:?[A-Za-z0-9_.-]+(\?:?[A-Za-z0-9_.-]+)?$`)
	filterStateArgument = regexp.MustCompile(`^[^:,%()]+(:(PLAIN|TYPED))?$`)
)

func checkHeaderArgument(text string) error {
	if !headerArgument.MatchString(text) {
		return fmt.Errorf("it needs the name of a header, and optionally a second one after a question mark")
	}
	return nil
}

// The rules for a command's arguments in parentheses. A command requires arguments from someArguments on.
const (
	noArguments = iota
	optionalArguments
	someArguments
	headerArguments
	filterStateArguments
)

var logCommands = map[string]int{
	"REQ": headerArguments, "RESP": headerArguments, "TRAILER": headerArguments, "DYNAMIC_METADATA": someArguments, "CLUSTER_METADATA": someArguments,
	"UPSTREAM_METADATA": someArguments, "FILTER_STATE": filterStateArguments, "ENVIRONMENT": someArguments, "CEL": someArguments,
	"START_TIME": optionalArguments, "DOWNSTREAM_PEER_CERT_V_START": optionalArguments, "DOWNSTREAM_PEER_CERT_V_END": optionalArguments,
	"PROTOCOL": 0, "UPSTREAM_PROTOCOL": 0, "RESPONSE_CODE": 0, "RESPONSE_CODE_DETAILS": 0, "RESPONSE_FLAGS": 0, "RESPONSE_FLAGS_LONG": 0,
	"CONNECTION_TERMINATION_DETAILS": 0, "BYTES_RECEIVED": 0, "BYTES_SENT": 0, "UPSTREAM_WIRE_BYTES_SENT": 0,
	"UPSTREAM_WIRE_BYTES_RECEIVED": 0, "UPSTREAM_HEADER_BYTES_SENT": 0, "UPSTREAM_HEADER_BYTES_RECEIVED": 0,
	"DOWNSTREAM_WIRE_BYTES_SENT": 0, "DOWNSTREAM_WIRE_BYTES_RECEIVED": 0, "DOWNSTREAM_HEADER_BYTES_SENT": 0,
	"DOWNSTREAM_HEADER_BYTES_RECEIVED": 0, "DURATION": 0, "REQUEST_DURATION": 0, "REQUEST_TX_DURATION": 0, "RESPONSE_DURATION": 0,
	"RESPONSE_TX_DURATION": 0, "HOSTNAME": 0, "ROUTE_NAME": 0, "VIRTUAL_CLUSTER_NAME": 0, "REQUESTED_SERVER_NAME": 0,
	"CONNECTION_ID": 0, "STREAM_ID": 0, "UNIQUE_ID": 0, "TRACE_ID": 0, "FILTER_CHAIN_NAME": 0, "ACCESS_LOG_TYPE": 0,
	"GRPC_STATUS_NUMBER": 0, "UPSTREAM_REQUEST_ATTEMPT_COUNT": 0, "UPSTREAM_TRANSPORT_FAILURE_REASON": 0,
	"DOWNSTREAM_TRANSPORT_FAILURE_REASON": 0, "UPSTREAM_HOST": 0, "UPSTREAM_CLUSTER": 0, "UPSTREAM_CLUSTER_RAW": 0,
	"UPSTREAM_CONNECTION_ID": 0, "UPSTREAM_LOCAL_ADDRESS": 0, "UPSTREAM_LOCAL_ADDRESS_WITHOUT_PORT": 0, "UPSTREAM_LOCAL_PORT": 0,
	"UPSTREAM_REMOTE_ADDRESS": 0, "UPSTREAM_REMOTE_ADDRESS_WITHOUT_PORT": 0, "UPSTREAM_REMOTE_PORT": 0,
	"UPSTREAM_PEER_SUBJECT": 0, "UPSTREAM_PEER_ISSUER": 0, "UPSTREAM_TLS_SESSION_ID": 0, "UPSTREAM_TLS_CIPHER": 0,
	"UPSTREAM_TLS_VERSION": 0, "UPSTREAM_PEER_CERT": 0, "UPSTREAM_LOCAL_URI_SAN": 0, "UPSTREAM_PEER_URI_SAN": 0,
	"UPSTREAM_LOCAL_DNS_SAN": 0, "UPSTREAM_PEER_DNS_SAN": 0,
	"DOWNSTREAM_REMOTE_ADDRESS": 0, "DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT": 0, "DOWNSTREAM_REMOTE_PORT": 0,
	"DOWNSTREAM_DIRECT_REMOTE_ADDRESS": 0, "DOWNSTREAM_DIRECT_REMOTE_ADDRESS_WITHOUT_PORT": 0, "DOWNSTREAM_DIRECT_REMOTE_PORT": 0,
	"DOWNSTREAM_LOCAL_ADDRESS": 0, "DOWNSTREAM_LOCAL_ADDRESS_WITHOUT_PORT": 0, "DOWNSTREAM_LOCAL_PORT": 0,
	"DOWNSTREAM_LOCAL_URI_SAN": 0, "DOWNSTREAM_LOCAL_DNS_SAN": 0, "DOWNSTREAM_LOCAL_IP_SAN": 0, "DOWNSTREAM_LOCAL_SUBJECT": 0,
	"DOWNSTREAM_PEER_URI_SAN": 0, "DOWNSTREAM_PEER_DNS_SAN": 0, "DOWNSTREAM_PEER_IP_SAN": 0, "DOWNSTREAM_PEER_SUBJECT": 0,
	"DOWNSTREAM_PEER_ISSUER": 0, "DOWNSTREAM_PEER_SERIAL": 0, "DOWNSTREAM_PEER_CERT": 0, "DOWNSTREAM_PEER_FINGERPRINT_256": 0,
	"DOWNSTREAM_PEER_FINGERPRINT_1": 0, "DOWNSTREAM_TLS_SESSION_ID": 0, "DOWNSTREAM_TLS_CIPHER": 0, "DOWNSTREAM_TLS_VERSION": 0,
}
