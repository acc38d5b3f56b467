// Package agentapi is the protocol between the CNI plugin and the node agent: HTTP with JSON on a unix socket in the
// agent's run directory. It contains only types and constants, so that it adds no dependencies to the plugin.
//
//	GET  /v1/pod?namespace=…&name=…&uid=…  200 with a Pod
//	                                       404 with a Refusal: a pod with this name and UID does not exist
//	                                       503 with a Refusal: the agent could not look up the pod; query the API server
//	POST /v1/log     []LogEntry            204
//	POST /v1/result  Result                204
//	GET  /v1/status                        200
//	                                       503 with a Refusal: the agent cannot serve pods, for the given reason
//
// Every body is at most MaxBody bytes. The socket belongs to root and has mode 0600. The agent also checks the user of
// each client process.
package agentapi

// SocketName is the socket's file name in the run directory. The plugin's configuration key "cni_agent_run_dir" is the
// path of that directory.
const SocketName = "pilotfish-cni.sock"

// DefaultRunDir is the default run directory.
const DefaultRunDir = "/var/run/istio-cni"

// AttachmentsDir is a subdirectory of the run directory. In ADD the plugin writes a file for each redirected sandbox into
// it, and in GC it reads these files.
const AttachmentsDir = "attachments"

// PodPath, LogPath, ResultPath and StatusPath are the URL paths of the requests.
const (
	PodPath    = "/v1/pod"
	LogPath    = "/v1/log"
	ResultPath = "/v1/result"
	StatusPath = "/v1/status"
)

// MaxBody limits the body of each request and response, in bytes. Kubernetes objects have at most 1.5 MiB.
const MaxBody = 4 << 20
