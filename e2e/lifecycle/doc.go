// Package lifecycle tests the life cycle of a proxy as its environment observes it: a load generator runs while
// workloads are replaced, and a kubelet probes a pod, runs its hooks and ends it. Agents, Envoys and the control plane
// are real; the applications are the test's own.
package lifecycle
