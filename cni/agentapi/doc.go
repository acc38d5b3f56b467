// Package agentapi is the protocol between the CNI plugin and the node agent: HTTP with JSON on a unix socket in the
// agent's run directory. It contains only types and constants, so that it adds no dependencies to the plugin.
//
//	GET  /v1/pod?namespace=…&name=…&uid=…  200 Pod · 404 Refusal: there is no such pod (of that UID) ·
//	                                       503 Refusal: the agent cannot know now, query the API server
//	POST /v1/log     []LogEntry   204
//	POST /v1/result  Result       204
//	GET  /v1/status               200, or 503 Refusal: why new pods should wait
//
// Every body is at most MaxBody bytes. The socket belongs to root (0600), and the agent checks the peer credentials of
// its clients.
package agentapi

// SocketName is the socket's file name in the run directory, which is "cni_agent_run_dir" of the plugin's
// configuration.
const SocketName = "pilotfish-cni.sock"

// DefaultRunDir is the default run directory.
const DefaultRunDir = "/var/run/istio-cni"

// AttachmentsDir is the plugin's directory in the run directory. It lists the redirected sandboxes, for GC.
const AttachmentsDir = "attachments"

// The paths.
const (
	PodPath    = "/v1/pod"
	LogPath    = "/v1/log"
	ResultPath = "/v1/result"
	StatusPath = "/v1/status"
)

// MaxBody limits each request and response, in bytes. The API server stores no object of more than 1.5 MiB.
const MaxBody = 4 << 20
