// Package lifecycle tests the life of a proxy as the world around it sees it: a load that goes on while workloads are
// replaced under it, and a kubelet that probes, hooks and ends a pod. Agents, Envoys and the control plane are real;
// the applications are the test's own.
package lifecycle
