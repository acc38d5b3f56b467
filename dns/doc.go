// Package dns answers the application's DNS questions: names of the mesh from a table that the control plane sends, all
// else from the resolvers of resolv.conf, through a cache that outlives them.
package dns
