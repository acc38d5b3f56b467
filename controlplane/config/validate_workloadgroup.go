package config

import networking "istio.io/api/networking/v1alpha3"

func validateWorkloadGroup(s validator, group *networking.WorkloadGroup) {
	s.field("metadata").field("labels").checkLabels(group.GetMetadata().GetLabels())
	if group.GetTemplate() == nil {
		s.field("template").refuse("", "no template", "write one: template: {} is a workload of service account default")
		return
	}
	s.checkWorkloadTemplate(group.GetTemplate())
	if group.GetProbe() != nil {
		s.field("probe").warn("", "the control plane does not probe: the workload's agent does, by its own settings",
			"set the same readinessProbe in the PROXY_CONFIG of the agent")
	}
}

// checkWorkloadTemplate checks the common settings of the members of a group.
func (s validator) checkWorkloadTemplate(t *networking.WorkloadEntry) {
	at := s.field("template")
	if t.GetAddress() != "" {
		at.field("address").refuse(t.GetAddress(), "members of a group have addresses of their own", "remove it, or write a WorkloadEntry")
	}
	if t.GetServiceAccount() == "" {
		at.field("serviceAccount").warn("", "members have to prove to be of service account default", "name their service account")
	}
	at.checkWorkloadFields(t)
}
