// Package traffic sends requests continuously through a captured mesh, with mutual TLS, a gateway and TCP, while it
// changes documents, the control plane and the root certificates. No request may fail.
package traffic
