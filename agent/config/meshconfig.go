package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	meshv1 "istio.io/api/mesh/v1alpha1"

	"github.com/pilotfish-mesh/pilotfish/internal/protoyaml"
	"github.com/pilotfish-mesh/pilotfish/internal/regularfile"
)

func defaultProxyConfig() *meshv1.ProxyConfig {
	return &meshv1.ProxyConfig{
		ConfigPath:               DefaultConfigPath,
		ClusterName:              &meshv1.ProxyConfig_ServiceCluster{ServiceCluster: "istio-proxy"},
		DrainDuration:            durationpb.New(45 * time.Second),
		TerminationDrainDuration: durationpb.New(5 * time.Second),
		ProxyAdminPort:           15000,
		ControlPlaneAuthPolicy:   meshv1.AuthenticationPolicy_MUTUAL_TLS,
		DiscoveryAddress:         defaultDiscovery,
		StatNameLength:           189,
		StatusPort:               15020,
		FileFlushInterval:        durationpb.New(time.Second),
	}
}

// proxyConfigMerger merges the sources of ProxyConfig in order of precedence, and records the source of each field.
type proxyConfigMerger struct {
	merged  *meshv1.ProxyConfig
	sources map[protoreflect.Name]string
}

func newProxyConfigMerger() *proxyConfigMerger {
	l := &proxyConfigMerger{merged: defaultProxyConfig(), sources: map[protoreflect.Name]string{}}
	l.merged.ProtoReflect().Range(func(fd protoreflect.FieldDescriptor, _ protoreflect.Value) bool {
		l.sources[fd.Name()] = sourceDefault
		return true
	})
	return l
}

// maxConfiguration is the maximum size of a configuration file.
const maxConfiguration = 4 << 20

// readMeshFile reads Istio's MeshConfig from file. The returned document contains only the fields that are in the file.
// For a missing file, readMeshFile returns an empty MeshConfig and a nil document.
func (r *resolver) readMeshFile(file string) (*meshv1.MeshConfig, protoyaml.Document, error) {
	mesh := &meshv1.MeshConfig{}
	b, err := regularfile.Read(file, maxConfiguration)
	if errors.Is(err, fs.ErrNotExist) {
		return mesh, nil, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("reading the mesh configuration: %w", err)
	}
	doc, unknown, err := protoyaml.UnmarshalKnown(string(b), mesh)
	if err != nil {
		return nil, nil, fmt.Errorf("mesh configuration %s: %w; the fields are those of Istio's MeshConfig", file, err)
	}
	r.warnUnknownFields("mesh configuration "+file, unknown)
	return mesh, doc, nil
}

// warnUnknownFields adds a warning for each unknown field. Unknown fields are not errors, because the injector that wrote
// them may be newer than this agent.
func (r *resolver) warnUnknownFields(source string, unknown []error) {
	for _, u := range unknown {
		r.env.warn("%s: %v; the field has no effect", source, u)
	}
}

// mergeProxyConfigYAML merges text, a ProxyConfig in YAML. The fields in text replace the same fields of earlier
// sources.
func (r *resolver) mergeProxyConfigYAML(text, source string) error {
	layer := &meshv1.ProxyConfig{}
	doc, unknown, err := protoyaml.UnmarshalKnown(text, layer)
	if err != nil {
		return fmt.Errorf("%s: %w; the fields are those of Istio's ProxyConfig", source, err)
	}
	r.warnUnknownFields(source, unknown)
	r.merger.merge(layer, doc, source)
	return nil
}

// merge merges one source. Each field in doc replaces the same field of l.merged. layer contains the decoded fields.
// The entries of proxyMetadata are merged individually, as in Istio, because each is a separate setting.
func (l *proxyConfigMerger) merge(layer *meshv1.ProxyConfig, doc protoyaml.Document, source string) {
	from, to := layer.ProtoReflect(), l.merged.ProtoReflect()
	fields := from.Descriptor().Fields()
	for key := range doc {
		fd := fields.ByJSONName(key)
		if fd == nil {
			fd = fields.ByTextName(key)
		}
		if fd == nil {
			continue
		}
		switch {
		case fd.Name() == "proxy_metadata":
			if l.merged.ProxyMetadata == nil {
				l.merged.ProxyMetadata = map[string]string{}
			}
			for k, v := range layer.GetProxyMetadata() {
				l.merged.ProxyMetadata[k] = v
			}
		case from.Has(fd):
			to.Set(fd, from.Get(fd))
		default:
			to.Clear(fd)
		}
		if one := fd.ContainingOneof(); one != nil {
			for i := range one.Fields().Len() {
				delete(l.sources, one.Fields().Get(i).Name())
			}
		}
		l.sources[fd.Name()] = source
	}
}

// source returns the source of the field with the protobuf name field, or sourceDefault if no source sets the field.
func (l *proxyConfigMerger) source(field protoreflect.Name) string {
	if s, ok := l.sources[field]; ok {
		return s
	}
	return sourceDefault
}

// settings returns the fields that have a value, with their names in YAML and their sources.
func (l *proxyConfigMerger) settings() []Setting {
	var list []Setting
	fields := l.merged.ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		fd := fields.Get(i)
		source, known := l.sources[fd.Name()]
		if !known {
			continue
		}
		list = append(list, Setting{Name: fd.JSONName(), Value: fieldText(l.merged, fd), Source: source})
	}
	return list
}

// fieldText returns the value of a field as one line of YAML, with secrets masked.
func fieldText(m proto.Message, fd protoreflect.FieldDescriptor) string {
	one := m.ProtoReflect().New()
	if m.ProtoReflect().Has(fd) {
		one.Set(fd, m.ProtoReflect().Get(fd))
	}
	b, err := protojson.MarshalOptions{EmitDefaultValues: true}.Marshal(one.Interface())
	if err != nil {
		return err.Error()
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(b, &fields); err != nil {
		return err.Error()
	}
	raw := fields[fd.JSONName()]
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return maskValue(fd.JSONName(), text)
	}
	var anything any
	if err := json.Unmarshal(raw, &anything); err != nil {
		return string(raw)
	}
	compact, _ := json.Marshal(maskJSON(anything))
	return string(compact)
}
