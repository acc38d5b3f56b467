// Package agentapi is what the CNI plugin and the node agent say to each other: HTTP with JSON on a unix socket in the
// agent's run directory. It holds the words alone, so that the plugin links nothing for them.
//
//	GET  /v1/pod?namespace=…&name=…&uid=…  200 Pod · 404 Refusal: there is no such pod (of that UID) ·
//	                                       503 Refusal: the agent cannot know now, ask the API server
//	POST /v1/log     []LogEntry   204
//	POST /v1/result  Result       204
//	GET  /v1/status               200, or 503 Refusal: why new pods should wait
//
// Every body is at most MaxBody bytes. The socket belongs to root (0600), and its callers are checked by the kernel's word.
package agentapi

// SocketName is the socket's name in the run directory, which is "cni_agent_run_dir" of the plugin's configuration.
const SocketName = "pilotfish-cni.sock"

// DefaultRunDir is where the socket is when nothing else is said.
const DefaultRunDir = "/var/run/istio-cni"

// AttachmentsDir is the plugin's own folder in the run directory: the sandboxes that it has redirected, for its GC.
const AttachmentsDir = "attachments"

// The paths.
const (
	PodPath    = "/v1/pod"
	LogPath    = "/v1/log"
	ResultPath = "/v1/result"
	StatusPath = "/v1/status"
)

// MaxBody bounds each question and answer: the API server itself keeps no object of more than 1.5 MiB.
const MaxBody = 4 << 20
