// Package dns implements the agent's DNS proxy. It answers queries for mesh names from a name table that the control
// plane sends. It forwards all other queries to the resolvers in resolv.conf and caches their answers. While the
// resolvers fail, it serves expired answers from the cache.
package dns
