package bootstrap

import (
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	injectorv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/credential_injector/v3"
	codecv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/upstream_codec/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	genericv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/http/injected_credentials/generic/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	upstreamhttpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"

	"github.com/pilotfish-mesh/pilotfish/internal/uds"
)

// agentSecret is the name of the static secret with which Envoy authenticates to the agent.
const agentSecret = "pilotfish-agent"

// agentSecrets returns the static secrets of the bootstrap. Envoy's config_dump does not show the values of static
// secrets.
func (c Config) agentSecrets() []*tlsv3.Secret {
	if c.AgentSecret == "" {
		return nil
	}
	return []*tlsv3.Secret{{
		Name: agentSecret,
		Type: &tlsv3.Secret_GenericSecret{GenericSecret: &tlsv3.GenericSecret{
			Secret: &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: c.AgentSecret}},
		}},
	}}
}

// sdsClusterOptions returns the options of the cluster sds-grpc. If FilesSocket is set, the server of this cluster is
// another program, such as SPIRE, which must not receive the agent's secret.
func (c Config) sdsClusterOptions(a *anyBuilder) *upstreamhttpv3.HttpProtocolOptions {
	if c.FilesSocket != "" {
		return nil
	}
	return c.secretOptions(a)
}

// secretOptions returns the options of a cluster that connects to the agent. The options add the secret to each
// request. The secret cannot be in the metadata of a gRPC service, because the SDS config sources that control planes
// send contain only the cluster's name.
func (c Config) secretOptions(a *anyBuilder) *upstreamhttpv3.HttpProtocolOptions {
	if c.AgentSecret == "" {
		return &upstreamhttpv3.HttpProtocolOptions{}
	}
	credential := a.add(&genericv3.Generic{Credential: &tlsv3.SdsSecretConfig{Name: agentSecret}, Header: uds.SecretHeader})
	injector := a.add(&injectorv3.CredentialInjector{
		Overwrite:  true,
		Credential: &corev3.TypedExtensionConfig{Name: "envoy.http.injected_credentials.generic", TypedConfig: credential},
	})
	return &upstreamhttpv3.HttpProtocolOptions{HttpFilters: []*hcmv3.HttpFilter{
		{Name: "envoy.filters.http.credential_injector", ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: injector}},
		{Name: "envoy.filters.http.upstream_codec", ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: a.add(&codecv3.UpstreamCodec{})}},
	}}
}
