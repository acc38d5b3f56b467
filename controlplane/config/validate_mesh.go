package config

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/structpb"
	meshconfig "istio.io/api/mesh/v1alpha1"
)

// meshEffect contains the fields of MeshConfig that have an effect. docs/configuration.md documents them.
var meshEffect = map[protoreflect.Name]bool{
	"proxy_listen_port": true, "proxy_inbound_listen_port": true, "proxy_http_port": true, "connect_timeout": true,
	"protocol_detection_timeout": true, "tcp_keepalive": true, "enable_tracing": true, "access_log_file": true,
	"access_log_format": true, "access_log_encoding": true, "enable_envoy_access_log_service": true, "default_config": true,
	"outbound_traffic_policy": true, "enable_auto_mtls": true, "trust_domain": true, "trust_domain_aliases": true,
	"ca_certificates": true, "default_virtual_service_export_to": true, "default_destination_rule_export_to": true,
	"root_namespace": true, "locality_lb_setting": true, "h2_upgrade_policy": true, "extension_providers": true,
	"default_providers": true, "path_normalization": true, "default_http_retry_policy": true, "mesh_mTLS": true, "tls_defaults": true,
	// The following two settings cannot be disabled: listeners have no log of their own, and agents merge metrics.
	"disable_envoy_listener_log": true, "enable_prometheus_merge": true,
	"config_sources": true,
}

// CheckMesh validates a mesh configuration. It returns an error if proxies would reject the generated resources.
// warnings report fields without effect, and unprotected configuration sources.
func CheckMesh(mesh *meshconfig.MeshConfig) (warnings []Problem, err error) {
	if err := checkMeshLog(mesh); err != nil {
		return nil, err
	}
	if err := checkMeshValues(mesh); err != nil {
		return nil, err
	}
	if err := checkConfigSources(mesh); err != nil {
		return nil, err
	}
	names := map[string]bool{}
	for i, p := range mesh.GetExtensionProviders() {
		at := fmt.Sprintf("extensionProviders[%d]", i)
		switch {
		case p.GetName() == "":
			return nil, fmt.Errorf("%s has no name: documents refer to providers by name", at)
		case names[p.GetName()]:
			return nil, fmt.Errorf("%s: there are two providers named %q: rename one", at, p.GetName())
		}
		names[p.GetName()] = true
		if err := checkLogProvider(p); err != nil {
			return nil, fmt.Errorf("%s (%s): %w", at, p.GetName(), err)
		}
	}
	for _, list := range [][]string{mesh.GetDefaultProviders().GetTracing(), mesh.GetDefaultProviders().GetMetrics(), mesh.GetDefaultProviders().GetAccessLogging()} {
		for _, name := range list {
			if !names[name] && name != "prometheus" && name != "envoy" {
				return nil, fmt.Errorf("defaultProviders: there is no extension provider named %q: add it to extensionProviders, or correct the name", name)
			}
		}
	}
	return append(findIgnoredMeshFields(mesh), questionConfigSources(mesh)...), nil
}

func findIgnoredMeshFields(mesh *meshconfig.MeshConfig) []Problem {
	var out []Problem
	fields := mesh.ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		fd := fields.Get(i)
		if mesh.ProtoReflect().Has(fd) && !meshEffect[fd.Name()] {
			out = append(out, Problem{
				Severity: Warning, Code: NoEffect, Field: fd.JSONName(), Message: "has no effect in this version", Remedy: noSubstitute,
			})
		}
	}
	out = append(out, findIgnoredFields(mesh.ProtoReflect(), "")...)
	for i, p := range mesh.GetExtensionProviders() {
		switch p.GetProvider().(type) {
		case *meshconfig.MeshConfig_ExtensionProvider_Stackdriver, *meshconfig.MeshConfig_ExtensionProvider_Opencensus,
			*meshconfig.MeshConfig_ExtensionProvider_Lightstep:
			out = append(out, Problem{
				Severity: Warning, Code: NoEffect, Field: fmt.Sprintf("extensionProviders[%d]", i), Value: p.GetName(),
				Message: "Envoy does not support this type of provider: telemetry for it is discarded", Remedy: "use opentelemetry, zipkin, datadog or skywalking",
			})
		}
	}
	return out
}

func checkMeshLog(mesh *meshconfig.MeshConfig) error {
	format := mesh.GetAccessLogFormat()
	if format == "" {
		return nil
	}
	if mesh.GetAccessLogEncoding() == meshconfig.MeshConfig_TEXT {
		return hasName("accessLogFormat", CheckLogFormat(format))
	}
	fields := &structpb.Struct{}
	if err := protojson.Unmarshal([]byte(format), fields); err != nil {
		return fmt.Errorf("accessLogFormat is not a JSON object, which accessLogEncoding: JSON requires: %w", err)
	}
	return hasName("accessLogFormat", checkLogValue(structpb.NewStructValue(fields)))
}

func hasName(field string, err error) error {
	if err != nil {
		return fmt.Errorf("%s: %w", field, err)
	}
	return nil
}

func checkLogProvider(p *meshconfig.MeshConfig_ExtensionProvider) error {
	switch p := p.GetProvider().(type) {
	case *meshconfig.MeshConfig_ExtensionProvider_EnvoyFileAccessLog:
		if p.EnvoyFileAccessLog.GetPath() == "" {
			return fmt.Errorf("the path is missing: set the path of a file, such as /dev/stdout")
		}
		f := p.EnvoyFileAccessLog.GetLogFormat()
		if err := CheckLogFormat(f.GetText()); err != nil {
			return hasName("logFormat.text", err)
		}
		return hasName("logFormat.labels", checkLogValue(structpb.NewStructValue(f.GetLabels())))
	case *meshconfig.MeshConfig_ExtensionProvider_EnvoyOtelAls:
		f := p.EnvoyOtelAls.GetLogFormat()
		if err := CheckLogFormat(f.GetText()); err != nil {
			return hasName("logFormat.text", err)
		}
		return hasName("logFormat.labels", checkLogValue(structpb.NewStructValue(f.GetLabels())))
	}
	return nil
}

func checkLogValue(v *structpb.Value) error {
	switch k := v.GetKind().(type) {
	case *structpb.Value_StringValue:
		return CheckLogFormat(k.StringValue)
	case *structpb.Value_StructValue:
		for name, field := range k.StructValue.GetFields() {
			if err := checkLogValue(field); err != nil {
				return hasName(name, err)
			}
		}
	case *structpb.Value_ListValue:
		for _, item := range k.ListValue.GetValues() {
			if err := checkLogValue(item); err != nil {
				return err
			}
		}
	}
	return nil
}
