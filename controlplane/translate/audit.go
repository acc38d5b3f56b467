package translate

import (
	"cmp"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	filev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/file/v3"
)

// auditLog returns the access logger that writes one line for each request or connection that an AUDIT policy matches.
// The lines are written to the mesh's access log file, or to standard output if the mesh has none. It returns nil for
// outbound traffic, and if the workload has no AUDIT policy.
func (v proxyView) auditLog(t traffic, filter string) []*accesslogv3.AccessLog {
	if t.side == outboundSide || !v.hasAuditPolicy() {
		return nil
	}
	fields := map[string]string{
		"audit_policy":     "%DYNAMIC_METADATA(" + filter + ":" + auditPrefix + "shadow_effective_policy_id)%",
		"start_time":       "%START_TIME%",
		"source_principal": "%DOWNSTREAM_PEER_URI_SAN%",
		"source_address":   "%DOWNSTREAM_REMOTE_ADDRESS%",
		"destination":      "%DOWNSTREAM_LOCAL_ADDRESS%",
		"method":           "%REQ(:METHOD)%",
		"path":             "%REQ(X-ENVOY-ORIGINAL-PATH?:PATH)%",
		"authority":        "%REQ(:AUTHORITY)%",
		"response_code":    "%RESPONSE_CODE%",
		"request_id":       "%REQ(X-REQUEST-ID)%",
	}
	return []*accesslogv3.AccessLog{{
		Name: fileLogName,
		Filter: &accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_MetadataFilter{
			MetadataFilter: &accesslogv3.MetadataFilter{
				Matcher:            metadataMatcher(filter, []string{auditPrefix + "shadow_engine_result"}, stringValue(exact("denied"))),
				MatchIfKeyNotFound: boolean(false),
			},
		}},
		ConfigType: &accesslogv3.AccessLog_TypedConfig{TypedConfig: anyOf(&filev3.FileAccessLog{
			Path: cmp.Or(v.s.Mesh.GetAccessLogFile(), "/dev/stdout"),
			AccessLogFormat: &filev3.FileAccessLog_LogFormat{LogFormat: &corev3.SubstitutionFormatString{
				Format: &corev3.SubstitutionFormatString_JsonFormat{JsonFormat: stringStruct(fields)},
			}},
		})},
	}}
}
