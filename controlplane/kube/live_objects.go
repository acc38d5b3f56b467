package kube

import "github.com/pilotfish-mesh/pilotfish/controlplane/config"

// SourceObjects looks up pods and service accounts in the objects of a Source. It implements LiveObjects.
type SourceObjects struct {
	Source interface {
		Get(config.Key) *config.Resource
		AccountUID(namespace, name string) (uid string, ok bool)
	}
}

// FindPod implements LiveObjects.
func (o SourceObjects) FindPod(namespace, name string) (uid, account string, found bool) {
	resource := o.Source.Get(config.Key{Kind: config.Pod, Namespace: namespace, Name: name})
	if resource == nil {
		return "", "", false
	}
	pod, ok := resource.Spec.(*config.PodSpec)
	if !ok || pod.Terminating {
		return "", "", false
	}
	return pod.UID, pod.ServiceAccount, true
}

// FindAccount implements LiveObjects.
func (o SourceObjects) FindAccount(namespace, name string) (uid string, found bool) {
	return o.Source.AccountUID(namespace, name)
}
