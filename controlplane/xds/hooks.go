package xds

import "time"

// Hooks are the optional functions of a Proxy; nil functions are not called. The server calls them from one goroutine at
// a time.
type Hooks struct {
	// AttributeNACK returns the documents from which the named resources were generated, the likeliest cause first.
	// since is the time of the client's last ACK of the type; zero means never.
	AttributeNACK func(state State, typeURL string, names []string, reason string, since time.Time) []SuspectDocument
	// ResolveOnDemand is set if the client requests virtual hosts on demand. It resolves names that consist of the route
	// configuration, a slash, and the host of the HTTP request. From then on the client's resources include those to
	// which the names resolve. targets maps each resolvable name to the name of its resource. before are the resources
	// of other types that the client must receive first.
	ResolveOnDemand func(state State, names []string) (targets map[string]string, before PushScope)
	// StartReplacing is called before resources are removed, once the client no longer refers to them. It returns true
	// if any of them has a replacement. From then on, Generate returns the replacements.
	StartReplacing func(typeURL string, names []string) bool
	// Resume is called with the resources that a reconnecting client claims, before they are compared with those that
	// the client should have.
	Resume func(typeURL string, names []string)
	// ReconnectReason returns the reason for which the client has to reconnect, because a part of its node is outdated,
	// or nil. The server calls it at each push.
	ReconnectReason func() error
	// HandleHealthReport is called when the client's agent reports the workload's health; reason is set if the workload
	// is unhealthy. It must not block.
	HandleHealthReport func(healthy bool, reason string)
	// IsValidName reports whether some resource of the type could have the name, in any state of the mesh. Without it,
	// all names are valid.
	IsValidName func(typeURL, name string) bool
	// DisableVHDS is called when the client may have had route configurations with inline virtual hosts, from which it
	// may be unable to switch back to VHDS. It returns true if all route configurations that are generated from then on
	// have inline virtual hosts.
	DisableVHDS func() bool
}
