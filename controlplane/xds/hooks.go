package xds

import "time"

// Hooks contains the optional functions of a Proxy. A function that is nil is not called. The server never calls the
// functions of one Proxy concurrently.
type Hooks struct {
	// Types are the types that the client can request, in the order in which one push sends them; nil selects Order.
	// Types without the prefix type.googleapis.com/ contain documents: a first request without names subscribes to all
	// of them.
	Types []string
	// AttributeNACK returns the documents from which the resources called names were generated. The most likely cause
	// of the NACK is first. reason is the text of the NACK. lastACK is the time of the client's last ACK of the type,
	// or zero if there was none.
	AttributeNACK func(state State, typeURL string, names []string, reason string, lastACK time.Time) []SuspectDocument
	// ResolveOnDemand is set if the client requests virtual hosts on demand. It resolves names that consist of the
	// route configuration, a slash, and the host of the HTTP request. From then on, Generate also returns the resources
	// to which the names resolve. targets maps each resolvable name to the name of its resource. before contains the
	// resources of other types that the client must receive before these resources.
	ResolveOnDemand func(state State, names []string) (targets map[string]string, before PushScope)
	// StartReplacing is called with resources that the server is about to remove, because the client no longer refers
	// to them. It returns true if any of them has a replacement. From then on, Generate returns the replacements.
	StartReplacing func(typeURL string, names []string) bool
	// Resume is called with the resources that a reconnecting client reports, before the server compares them with the
	// resources that the client should have.
	Resume func(typeURL string, names []string)
	// ReconnectReason returns an error if a part of the client's node is outdated, and nil otherwise. The server calls
	// it at each push. The error ends the stream, so that the client reconnects with a current node.
	ReconnectReason func() error
	// HandleHealthReport is called when the client's agent reports the workload's health. If the workload is unhealthy,
	// reason is set. HandleHealthReport must not block.
	HandleHealthReport func(healthy bool, reason string)
	// IsValidName returns false if no resource of the type can have the name in any state of the mesh. If IsValidName
	// is nil, all names are valid.
	IsValidName func(typeURL, name string) bool
	// DisableVHDS is called when the client may have had route configurations with inline virtual hosts. Some Envoy
	// versions cannot switch back from these to VHDS. If DisableVHDS returns true, Generate returns all route
	// configurations with inline virtual hosts from then on.
	DisableVHDS func() bool
}
