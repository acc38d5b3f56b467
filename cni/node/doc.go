// Package node contains the pod cache and the servers of the CNI node agent. The agent caches the node's pods and serves
// them to the CNI plugin on a unix socket. On the same socket it receives the plugin's log lines and results. It serves
// probes and metrics over HTTP.
package node
