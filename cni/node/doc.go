// Package node is what of the CNI node agent the plugin and people speak to: it knows the pods of its node, tells them to
// the plugin on a unix socket, takes the plugin's log and results, and answers for its own health and figures.
package node
