// Package node contains the CNI node agent's cache and servers. It caches the pods of the node and serves them to the
// plugin on a unix socket. It receives the plugin's log and results, and serves health and metrics.
package node
