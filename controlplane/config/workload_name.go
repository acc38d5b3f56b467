package config

import (
	"regexp"
	"strings"
)

// cronJobRun matches the name of a Job that a CronJob created.
var cronJobRun = regexp.MustCompile(`^(.+)-\d{8,10}$`)

// WorkloadName returns the name of the workload of a pod. kind and name identify the pod's controller (the owner
// reference with controller: true); both are empty for a pod without one. As in Istio, the workload of a pod of a
// ReplicaSet is the Deployment, and that of a pod of a Job its CronJob. labels are the labels of the pod.
func WorkloadName(pod, kind, name string, labels map[string]string) string {
	if name == "" {
		return pod
	}
	switch kind {
	case "ReplicaSet":
		for _, label := range []string{"pod-template-hash", "rollouts-pod-template-hash"} {
			if hash := labels[label]; hash != "" {
				if deployment, ok := strings.CutSuffix(name, "-"+hash); ok {
					return deployment
				}
			}
		}
	case "ReplicationController":
		if of := labels["deploymentconfig"]; of != "" {
			return of
		}
	case "Job":
		if parts := cronJobRun.FindStringSubmatch(name); parts != nil {
			return parts[1]
		}
	}
	return name
}
