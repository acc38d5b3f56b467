// Package traffic keeps requests flowing through a captured mesh, with mutual TLS, a gateway and TCP, while what there is
// to change is changed: documents, the control plane, the roots of all certificates. None may fail.
package traffic
