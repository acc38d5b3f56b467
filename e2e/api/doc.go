// Package api tests the documents of Istio's API with real requests through real Envoys. It runs one captured mesh for
// each of the oldest and the newest Envoy version. Each row adds its documents to the mesh while it runs.
//
// To add a row, write it into a list in the file of its subject and pass the list to runRows. See row for its fields
// and testMesh for the helpers that make requests.
package api
