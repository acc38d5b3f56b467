package translate

import (
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	filev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/file/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/structpb"
	meshconfig "istio.io/api/mesh/v1alpha1"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// textLogFormat is Istio's default text format.
const textLogFormat = `[%START_TIME%] "%REQ(:METHOD)% %REQ(X-ENVOY-ORIGINAL-PATH?:PATH)% %PROTOCOL%" %RESPONSE_CODE% ` +
	`%RESPONSE_FLAGS% %RESPONSE_CODE_DETAILS% %CONNECTION_TERMINATION_DETAILS% "%UPSTREAM_TRANSPORT_FAILURE_REASON%" ` +
	`%BYTES_RECEIVED% %BYTES_SENT% %DURATION% %RESP(X-ENVOY-UPSTREAM-SERVICE-TIME)% "%REQ(X-FORWARDED-FOR)%" ` +
	`"%REQ(USER-AGENT)%" "%REQ(X-REQUEST-ID)%" "%REQ(:AUTHORITY)%" "%UPSTREAM_HOST%" %UPSTREAM_CLUSTER_RAW% ` +
	`%UPSTREAM_LOCAL_ADDRESS% %DOWNSTREAM_LOCAL_ADDRESS% %DOWNSTREAM_REMOTE_ADDRESS% %REQUESTED_SERVER_NAME% %ROUTE_NAME%` + "\n"

// jsonLogFields are the fields of Istio's default JSON format.
var jsonLogFields = map[string]string{
	"start_time":                        "%START_TIME%",
	"method":                            "%REQ(:METHOD)%",
	"path":                              "%REQ(X-ENVOY-ORIGINAL-PATH?:PATH)%",
	"protocol":                          "%PROTOCOL%",
	"response_code":                     "%RESPONSE_CODE%",
	"response_flags":                    "%RESPONSE_FLAGS%",
	"response_code_details":             "%RESPONSE_CODE_DETAILS%",
	"connection_termination_details":    "%CONNECTION_TERMINATION_DETAILS%",
	"upstream_transport_failure_reason": "%UPSTREAM_TRANSPORT_FAILURE_REASON%",
	"bytes_received":                    "%BYTES_RECEIVED%",
	"bytes_sent":                        "%BYTES_SENT%",
	"duration":                          "%DURATION%",
	"upstream_service_time":             "%RESP(X-ENVOY-UPSTREAM-SERVICE-TIME)%",
	"x_forwarded_for":                   "%REQ(X-FORWARDED-FOR)%",
	"user_agent":                        "%REQ(USER-AGENT)%",
	"request_id":                        "%REQ(X-REQUEST-ID)%",
	"authority":                         "%REQ(:AUTHORITY)%",
	"upstream_host":                     "%UPSTREAM_HOST%",
	"upstream_cluster":                  "%UPSTREAM_CLUSTER_RAW%",
	"upstream_local_address":            "%UPSTREAM_LOCAL_ADDRESS%",
	"downstream_local_address":          "%DOWNSTREAM_LOCAL_ADDRESS%",
	"downstream_remote_address":         "%DOWNSTREAM_REMOTE_ADDRESS%",
	"requested_server_name":             "%REQUESTED_SERVER_NAME%",
	"route_name":                        "%ROUTE_NAME%",
}

func meshLogFormat(mesh *meshconfig.MeshConfig) *corev3.SubstitutionFormatString {
	format := mesh.GetAccessLogFormat()
	if mesh.GetAccessLogEncoding() == meshconfig.MeshConfig_JSON {
		fields := stringStruct(jsonLogFields)
		if custom := (&structpb.Struct{}); format != "" && protojson.Unmarshal([]byte(format), custom) == nil {
			fields = formatStruct(custom)
		}
		return jsonFormat(fields)
	}
	return textFormat(logText(orElse(format, textLogFormat)))
}

// fileLog returns an access log that is written to a file.
func fileLog(p *meshconfig.MeshConfig_ExtensionProvider_EnvoyFileAccessLogProvider) *filev3.FileAccessLog {
	format := textFormat(textLogFormat)
	switch f := p.GetLogFormat().GetLogFormat().(type) {
	case *meshconfig.MeshConfig_ExtensionProvider_EnvoyFileAccessLogProvider_LogFormat_Text:
		if f.Text != "" {
			format = textFormat(strings.TrimSuffix(logText(f.Text), "\n") + "\n")
		}
	case *meshconfig.MeshConfig_ExtensionProvider_EnvoyFileAccessLogProvider_LogFormat_Labels:
		format = jsonFormat(stringStruct(jsonLogFields))
		if len(f.Labels.GetFields()) > 0 {
			format = jsonFormat(formatStruct(f.Labels))
		}
	}
	format.OmitEmptyValues = p.GetOmitEmptyValues()
	return &filev3.FileAccessLog{
		Path: p.GetPath(), AccessLogFormat: &filev3.FileAccessLog_LogFormat{LogFormat: format},
	}
}

func textFormat(text string) *corev3.SubstitutionFormatString {
	return &corev3.SubstitutionFormatString{Format: &corev3.SubstitutionFormatString_TextFormatSource{
		TextFormatSource: &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: text}},
	}}
}

func jsonFormat(fields *structpb.Struct) *corev3.SubstitutionFormatString {
	return &corev3.SubstitutionFormatString{Format: &corev3.SubstitutionFormatString_JsonFormat{JsonFormat: fields}}
}

// logText returns a format that Envoy accepts. If the format contains a command that Envoy does not know, logText
// escapes all percent signs, so that Envoy logs the format as literal text.
func logText(format string) string {
	if config.CheckLogFormat(format) != nil {
		return strings.ReplaceAll(format, "%", "%%")
	}
	return format
}

// formatStruct applies logText to all strings of a JSON format.
func formatStruct(fields *structpb.Struct) *structpb.Struct {
	out := &structpb.Struct{Fields: make(map[string]*structpb.Value, len(fields.GetFields()))}
	for name, value := range fields.GetFields() {
		out.Fields[name] = formatValue(value)
	}
	return out
}

func formatValue(value *structpb.Value) *structpb.Value {
	switch k := value.GetKind().(type) {
	case *structpb.Value_StringValue:
		return structpb.NewStringValue(logText(k.StringValue))
	case *structpb.Value_StructValue:
		return structpb.NewStructValue(formatStruct(k.StructValue))
	case *structpb.Value_ListValue:
		list := &structpb.ListValue{}
		for _, item := range k.ListValue.GetValues() {
			list.Values = append(list.Values, formatValue(item))
		}
		return structpb.NewListValue(list)
	}
	return value
}
