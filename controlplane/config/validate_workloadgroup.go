package config

import networking "istio.io/api/networking/v1alpha3"

func validateWorkloadGroup(s scope, group *networking.WorkloadGroup) {
	s.field("metadata").field("labels").labels(group.GetMetadata().GetLabels())
	if group.GetTemplate() == nil {
		s.field("template").refuse("", "no template", "write one: template: {} is a workload of service account default")
		return
	}
	s.workloadTemplate(group.GetTemplate())
	if group.GetProbe() != nil {
		s.field("probe").warn("", "the control plane does not probe: the workload's agent does, by its own settings",
			"give the agent the same as readinessProbe of its PROXY_CONFIG")
	}
}

// workloadTemplate checks what the members of a group have in common.
func (s scope) workloadTemplate(t *networking.WorkloadEntry) {
	at := s.field("template")
	if t.GetAddress() != "" {
		at.field("address").refuse(t.GetAddress(), "members of a group have addresses of their own", "remove it, or write a WorkloadEntry")
	}
	if t.GetServiceAccount() == "" {
		at.field("serviceAccount").warn("", "members have to prove to be of service account default", "name their service account")
	}
	at.workloadFacts(t)
}
