package iptables

import (
	"strings"
	"testing"
)

func TestLoopbackCannotBeExcludedOrVirtualUnderTProxy(t *testing.T) {
	for want, pairs := range map[string][]string{
		`--kube-virt-interfaces "vif0,lo"`:  {flagVirtual, "vif0,lo"},
		`--istio-exclude-interfaces "lo"`:   {flagMode, "TPROXY", flagInterfaces, "lo"},
		`--istio-exclude-interfaces "a,lo"`: {flagMode, "TPROXY", flagInterfaces, "a,lo"},
	} {
		o := options(t, pairs...)
		if err := o.Validate(); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: %v, want an error about %s", pairs, err, want)
		}
	}
	o := options(t, flagInterfaces, "lo")
	if err := o.Validate(); err != nil {
		t.Error(err)
	}
}
