// Package dns implements the agent's DNS proxy. It answers mesh names from a table that the control plane sends, and
// forwards all other queries to the resolvers of resolv.conf, through a cache that serves stale answers when they fail.
package dns
