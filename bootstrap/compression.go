package bootstrap

import (
	"fmt"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	brotliv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/compression/brotli/compressor/v3"
	gzipv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/compression/gzip/compressor/v3"
	zstdv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/compression/zstd/compressor/v3"
	compressorv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/compressor/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/proto"
)

type encoding struct {
	name    string
	library func() proto.Message
}

// encodings are the supported compression algorithms for statistics, with the names that the annotation uses. The best
// is first. Envoy selects the algorithm that the client prefers.
var encodings = []encoding{
	{"brotli", func() proto.Message { return &brotliv3.Brotli{} }},
	{"zstd", func() proto.Message { return &zstdv3.Zstd{} }},
	{"gzip", func() proto.Message { return &gzipv3.Gzip{} }},
}

// metricsContentTypes are the content types of metrics. By default, Envoy does not compress all of them.
var metricsContentTypes = []string{
	"text/plain", "application/vnd.google.protobuf", "application/openmetrics-text", "application/openmetrics-protobuf",
}

// compressors returns compression filters for the encodings in the pod's annotation. Without the annotation, it returns
// filters for all encodings, or none if ProxyConfig disables compression.
func compressors(c Config, a *anyBuilder) []*hcmv3.HttpFilter {
	wanted := splitList(strings.ReplaceAll(c.Annotations[annotationCompress], " ", ""))
	if !slices.ContainsFunc(wanted, isEncoding) {
		wanted = nil
	}
	if off := c.ProxyConfig.GetStatsCompression(); len(wanted) == 0 && off != nil && !off.GetValue() {
		return nil
	}
	var filters []*hcmv3.HttpFilter
	for _, e := range encodings {
		if len(wanted) > 0 && !slices.Contains(wanted, e.name) {
			continue
		}
		filters = append(filters, &hcmv3.HttpFilter{
			Name: "envoy.filters.http.compressor." + e.name,
			ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: a.add(&compressorv3.Compressor{
				CompressorLibrary: &corev3.TypedExtensionConfig{
					Name:        "stats_" + e.name,
					TypedConfig: a.add(e.library()),
				},
				ResponseDirectionConfig: &compressorv3.Compressor_ResponseDirectionConfig{
					//lint:ignore SA1019 Envoy 1.36 does not have the successor of this field
					CommonConfig: &compressorv3.Compressor_CommonDirectionConfig{ContentType: metricsContentTypes},
				},
			})},
		})
	}
	return filters
}

func isEncoding(name string) bool {
	return slices.ContainsFunc(encodings, func(e encoding) bool { return e.name == name })
}

// compressionWarnings returns a warning for each unknown encoding in the annotation.
func compressionWarnings(c Config) []string {
	var warnings []string
	for name := range strings.SplitSeq(strings.ReplaceAll(c.Annotations[annotationCompress], " ", ""), ",") {
		if name != "" && !isEncoding(name) {
			warnings = append(warnings, fmt.Sprintf("annotation %s: %q is not known; use brotli, zstd or gzip; the entry has no effect", annotationCompress, name))
		}
	}
	return warnings
}
