package config

import networking "istio.io/api/networking/v1alpha3"

func validateWorkloadGroup(s validator, group *networking.WorkloadGroup) {
	s.field("metadata").field("labels").checkLabels(group.GetMetadata().GetLabels())
	if group.GetTemplate() == nil {
		s.field("template").refuse("", "the template is missing", "set a template; template: {} selects the service account default")
		return
	}
	s.checkWorkloadTemplate(group.GetTemplate())
	if group.GetProbe() != nil {
		s.field("probe").warn("", "the control plane does not run probes; the workload's agent does, according to its own settings",
			"set the same readinessProbe in the PROXY_CONFIG of the agent")
	}
}

// checkWorkloadTemplate checks the template t, whose settings apply to all members of a group.
func (s validator) checkWorkloadTemplate(t *networking.WorkloadEntry) {
	at := s.field("template")
	if t.GetAddress() != "" {
		at.field("address").warn(t.GetAddress(), "has no effect, because each member of a group has its own address", "remove the address, or create a WorkloadEntry")
	}
	if t.GetServiceAccount() == "" {
		at.field("serviceAccount").warn("", "the service account is missing, so members need a token of service account default", "set the members' service account")
	}
	at.checkWorkloadFields(t)
}
