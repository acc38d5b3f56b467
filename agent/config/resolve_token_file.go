package config

import (
	"errors"
	"net/url"

	"github.com/pilotfish-mesh/pilotfish/sts"
)

// Values of CREDENTIAL_FETCHER_TYPE.
const (
	fetchJWT = "JWT"
	FetchGCE = "GoogleComputeEngine"
)

// resolveTokenFile returns the path of the workload's token; empty if the workload has no token, or the metadata server
// issues it. Control planes no longer accept first-party tokens, so the third-party token has precedence if it exists.
func (r *resolver) resolveTokenFile() string {
	policy := r.env.choice("jwtPolicy", "JWT_POLICY", "third-party-jwt", "third-party-jwt", "first-party-jwt", "none")
	r.config.CredentialFetcher = parseVariable(r.env, "credentialFetcher", "CREDENTIAL_FETCHER_TYPE", fetchJWT, "use one of "+fetchJWT+", "+FetchGCE, parseFetcher)
	r.config.MetadataServer = parseVariable(r.env, "metadataServer", "GCE_METADATA_HOST", sts.MetadataHost, "write host or host:port, such as "+sts.MetadataHost, parseHost)
	switch {
	case r.config.CredentialFetcher != fetchJWT, policy == "none":
		return ""
	case policy == "first-party-jwt" && !r.isFile(thirdPartyToken):
		return firstPartyToken
	}
	return thirdPartyToken
}

func parseFetcher(text string) (string, error) {
	if text != fetchJWT && text != FetchGCE {
		return "", errRefused
	}
	return text, nil
}

// parseHost returns text if it is a host with an optional port, and an error for any other part of a URL.
func parseHost(text string) (string, error) {
	u, err := url.Parse("http://" + text)
	if err == nil && (u.Hostname() == "" || u.Host != text) {
		err = errors.New("not a host")
	}
	return text, err
}
