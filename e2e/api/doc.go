// Package api sends real requests through real Envoys for what the documents of Istio's API promise: one captured mesh for
// each of the oldest and the newest Envoy, to which each row adds its documents while it runs.
//
// To add a row, write it into a list in a file of its subject and hand the list to runRows; see row for what it can say,
// and world for how it makes requests.
package api
