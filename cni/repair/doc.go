// Package repair looks into the network namespaces of the pods that run on a node: whether what should redirect their
// traffic is in force. It tells what differs, and deals once with a pod that slipped past the CNI plugin: by mending it in
// place, deleting it or labelling it.
package repair
