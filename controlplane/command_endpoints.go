package controlplane

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/spf13/pflag"

	"github.com/pilotfish-mesh/pilotfish/controlplane/registry"
)

// EndpointFlags registers the flags that set policy: which endpoints documents may use.
func EndpointFlags(flags *pflag.FlagSet, policy *registry.EndpointPolicy) {
	UnixEndpointFlag(flags, &policy.AllowUnix)
	flags.Func("allow-local-endpoints", "`network` of loopback or link-local addresses, such as 127.0.0.0/8, that gateways may use as endpoints; may be repeated (default: none)", func(list string) error {
		for text := range strings.SplitSeq(list, ",") {
			network, err := netip.ParsePrefix(text)
			if err != nil {
				return fmt.Errorf("%q is not a network such as 127.0.0.0/8: %w", text, err)
			}
			policy.AllowNetworks = append(policy.AllowNetworks, network)
		}
		return nil
	})
}

// UnixEndpointFlag registers the flag --allow-unix-endpoints, which sets paths.
func UnixEndpointFlag(flags *pflag.FlagSet, paths *[]string) {
	flags.StringSliceVar(paths, "allow-unix-endpoints", nil, "absolute `path` of a unix socket, or of a directory of sockets, that endpoints in documents may use; may be repeated (default: none)")
}
