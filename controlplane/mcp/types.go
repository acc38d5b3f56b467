// Package mcp exchanges documents of Istio's kinds with other control planes over xDS, as Istio's Mesh Configuration
// Protocol specifies. Source is the client. A server of documents uses TypeURLs, ParseTypeURL and Encode.
//
// The type URL of a request is group/version/Kind. A resource is an istio.mcp.v1alpha1.Resource whose metadata has the
// name NAMESPACE/NAME and whose body is the spec.
package mcp

import (
	"slices"
	"strings"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// Generator is the value of GENERATOR in a client's node metadata. With this value, the client requests documents
// instead of a proxy's configuration. Istio's clients send the same value.
const Generator = "api"

// requestedVersions lists the kinds for which Istio's client requests another API version than the preferred one.
// Servers publish each kind under one type URL, so this client must request the same version.
var requestedVersions = map[config.Kind]string{config.EnvoyFilter: "networking.istio.io/v1alpha3", config.ProxyConfig: "networking.istio.io/v1beta1"}

// TypeURL returns the type URL under which a client requests the documents of a kind.
func TypeURL(kind config.Kind) string {
	version, ok := requestedVersions[kind]
	if !ok {
		version = kind.APIVersions()[0]
	}
	return version + "/" + string(kind)
}

// TypeURLs returns the type URLs of all API versions of all kinds.
func TypeURLs() []string {
	var urls []string
	for _, kind := range config.IstioKinds() {
		for _, version := range kind.APIVersions() {
			urls = append(urls, version+"/"+string(kind))
		}
	}
	return urls
}

// ParseTypeURL returns the kind and apiVersion of a type URL. ok is false for other types.
func ParseTypeURL(typeURL string) (kind config.Kind, apiVersion string, ok bool) {
	at := strings.LastIndexByte(typeURL, '/')
	if at < 0 {
		return "", "", false
	}
	kind, apiVersion = config.Kind(typeURL[at+1:]), typeURL[:at]
	return kind, apiVersion, kind.NewSpec() != nil && slices.Contains(kind.APIVersions(), apiVersion)
}
