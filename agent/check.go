package agent

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/pilotfish-mesh/pilotfish/bootstrap"
	"github.com/pilotfish-mesh/pilotfish/internal/health"
	"github.com/pilotfish-mesh/pilotfish/internal/phrase"
	"github.com/pilotfish-mesh/pilotfish/sds"
	"github.com/pilotfish-mesh/pilotfish/xdsproxy"
)

// CheckState is the result of one check.
type CheckState string

// States of a check. A check is skipped if it does not apply to the agent, or is not possible.
const (
	CheckPassed  CheckState = "passed"
	CheckFailed  CheckState = "failed"
	CheckSkipped CheckState = "skipped"
)

// Names of checks.
const (
	CheckIdentity      = "identity"
	CheckControlPlane  = "control plane"
	CheckCertificates  = "certificates"
	CheckConfiguration = "configuration"
	CheckRedirection   = "redirection"
	CheckDNS           = "DNS"
	CheckEnvoy         = "Envoy"
)

// CheckResult is the result of one check of a running agent.
type CheckResult struct {
	Name  string     `json:"name"`
	State CheckState `json:"state"`
	// Detail is what the check found.
	Detail string `json:"detail"`
	// Remedy is what the user can do about a failure.
	Remedy string `json:"remedy,omitempty"`
}

// CheckReport contains the checks that the agent itself performs. Another process must check the redirection, because
// the agent lacks the privilege.
type CheckReport struct {
	Checks []CheckResult `json:"checks"`
	// PID and NetworkNamespace identify the namespace in which the agent runs.
	PID              int    `json:"pid"`
	NetworkNamespace string `json:"networkNamespace"`
	// InterceptionMode is the way in which the pod's traffic is redirected to Envoy: REDIRECT, TPROXY or NONE. It is empty
	// if the agent does not know it.
	InterceptionMode string `json:"interceptionMode"`
}

// handleCheck registers the handler of the check command.
func (a *Agent) handleCheck() {
	a.control.Handle("GET /check", jsonHandler(func(context.Context, struct{}) (CheckReport, error) { return a.check(time.Now()), nil }))
}

func (a *Agent) check(now time.Time) CheckReport {
	r := CheckReport{PID: os.Getpid(), InterceptionMode: a.interceptionMode()}
	r.NetworkNamespace, _ = os.Readlink("/proc/self/ns/net") // empty on systems without namespaces
	status := a.relay.Status()
	r.Checks = []CheckResult{
		a.checkIdentity(), checkControlPlane(status, now), a.checkCertificates(now), a.checkConfiguration(status, now), a.checkDNS(), a.checkEnvoy(),
	}
	for _, p := range a.servers { // other components, such as the token exchange
		if p.health != nil && !isCheckedElsewhere(p.name) {
			r.Checks = append(r.Checks, conditionResult(p.name, p.health(), "works"))
		}
	}
	return r
}

// isCheckedElsewhere reports whether the agent has a separate check for the component.
func isCheckedElsewhere(component string) bool {
	return component == "certificates" || component == "xds" || component == "dns"
}

// interceptionMode returns how the traffic of the proxy is redirected: NONE for a gateway, and "" if the agent does not
// know it.
func (a *Agent) interceptionMode() string {
	if a.Config.Identity.Type == bootstrap.Router {
		return "NONE"
	}
	mode, _ := a.Config.Identity.Metadata["INTERCEPTION_MODE"].(string)
	return mode
}

// conditionResult converts c, the health of a component, to a result. passed is the detail of a passed check. Any
// reason in c is a failure, because a component that works as configured has no reason.
func conditionResult(name string, c health.Condition, passed string) CheckResult {
	if c.OK && c.Reason == "" {
		return CheckResult{Name: name, State: CheckPassed, Detail: passed}
	}
	return CheckResult{Name: name, State: CheckFailed, Detail: cmp.Or(c.Reason, "not healthy"), Remedy: c.Remedy}
}

// checkIdentity compares the identity in the workload certificate with the identity in the agent's settings.
func (a *Agent) checkIdentity() CheckResult {
	r := CheckResult{Name: CheckIdentity, State: CheckPassed}
	want := a.Config.Identity.SPIFFEID()
	if c := a.Config.Certificates; c.ExternalServer == sds.ExternalSDS {
		r.State, r.Detail = CheckSkipped, "Envoy fetches its certificate from the server on "+c.Socket
		return r
	}
	switch got := a.workloadCertificate().SPIFFEID; got {
	case want:
		r.Detail = want
	case "":
		r.State, r.Detail = CheckFailed, "the workload has no certificate for "+want
		r.Remedy = a.certificates.Condition().Remedy
	default:
		r.State, r.Detail = CheckFailed, fmt.Sprintf("the certificate is for %s, not for %s", got, want)
		r.Remedy = "set the service account, namespace and trust domain of the agent to those of the certificate, or correct the certificate"
	}
	return r
}

// workloadCertificate returns the certificate with which Envoy identifies itself, or an empty one if there is none.
func (a *Agent) workloadCertificate() sds.CertificateInfo {
	for _, c := range a.certificates.Certificates() {
		if c.Name == sds.DefaultName {
			return c
		}
	}
	return sds.CertificateInfo{}
}

func checkControlPlane(s xdsproxy.Status, now time.Time) CheckResult {
	r := CheckResult{Name: CheckControlPlane, State: CheckPassed}
	if !s.Connected {
		r.State = CheckFailed
		r.Detail = fmt.Sprintf("not connected to %s: %s", cmp.Or(s.Upstream, "the control plane"), cmp.Or(s.Reason, "no response yet"))
		r.Remedy = xdsproxy.ConnectRemedy
		return r
	}
	r.Detail = fmt.Sprintf("connected to %s", s.Upstream)
	if !s.Since.IsZero() {
		r.Detail += " for " + formatAge(now.Sub(s.Since))
	}
	if !s.LastResponse.IsZero() {
		r.Detail += fmt.Sprintf("; last response %s ago", formatAge(now.Sub(s.LastResponse)))
	}
	return r
}

// checkCertificates reports the expiry of the certificate that expires first.
func (a *Agent) checkCertificates(now time.Time) CheckResult {
	all := a.certificates.Certificates()
	condition := a.certificates.Condition()
	if len(all) == 0 && condition.OK && condition.Reason == "" {
		return CheckResult{Name: CheckCertificates, State: CheckSkipped, Detail: "the agent serves no certificates"}
	}
	r := conditionResult(CheckCertificates, condition, "")
	if len(all) == 0 {
		return r
	}
	first := all[0]
	for _, c := range all {
		if c.NotAfter.Before(first.NotAfter) {
			first = c
		}
	}
	left := first.NotAfter.Sub(now)
	switch {
	case r.State == CheckFailed:
	case left <= 0:
		r.State, r.Detail = CheckFailed, fmt.Sprintf("%s expired %s ago", first.Name, formatAge(-left))
		r.Remedy = "renew " + first.Source
	default:
		r.Detail = fmt.Sprintf("%s; %s expires first, in %s", phrase.Count(len(all), "certificate"), first.Name, formatAge(left))
		if !first.NextRotation.IsZero() {
			r.Detail += fmt.Sprintf(", and is renewed in %s", formatAge(max(0, first.NextRotation.Sub(now))))
		}
	}
	return r
}

// checkConfiguration reports the problem that configurationCheck finds, or else how long ago Envoy accepted its newest
// configuration. If resources are rejected, the remedy also names the command that shows them.
func (a *Agent) checkConfiguration(s xdsproxy.Status, now time.Time) CheckResult {
	condition := a.configurationCheck(a.relay)()
	var accepted time.Time
	var rejected []string
	for _, t := range s.Types {
		if t.LastAck.After(accepted) {
			accepted = t.LastAck
		}
		if t.State == xdsproxy.StateRejected {
			rejected = append(rejected, shortTypeURL(t.TypeURL))
		}
	}
	r := conditionResult(CheckConfiguration, condition, "")
	switch {
	case r.State == CheckFailed:
		if len(rejected) > 0 && r.Remedy != "" {
			r.Remedy += "; `xds status` shows the rejected resources"
		}
	case accepted.IsZero():
		r.State, r.Detail = CheckSkipped, "no client has requested configuration yet"
	default:
		r.Detail = fmt.Sprintf("accepted %s ago; no rejected resource", formatAge(now.Sub(accepted)))
	}
	return r
}

func (a *Agent) checkDNS() CheckResult {
	if a.dns == nil {
		return CheckResult{Name: CheckDNS, State: CheckSkipped, Detail: "the agent's DNS server is disabled"}
	}
	r := conditionResult(CheckDNS, a.dns.Condition(), "answers on "+a.Config.DNS.Listen)
	if r.State == CheckFailed && r.Remedy == "" {
		r.Remedy = fmt.Sprintf("check the resolvers in %s; `dns lookup NAME` shows the attempts for a name", cmp.Or(a.Config.DNS.ResolvConf, "/etc/resolv.conf"))
	}
	return r
}

func (a *Agent) checkEnvoy() CheckResult {
	if a.envoy == nil {
		return CheckResult{Name: CheckEnvoy, State: CheckSkipped, Detail: "the agent runs no Envoy (DISABLE_ENVOY)"}
	}
	s := a.envoyStatus()
	detail := fmt.Sprintf("%s, pid %d, %s", strings.TrimPrefix(s.Version, "envoy "), s.PID, s.State)
	if s.Restarts > 0 {
		detail += ", " + phrase.Count(s.Restarts, "restart")
	}
	return conditionResult(CheckEnvoy, a.envoy.condition(), detail)
}

// shortTypeURL returns the part of url after the last "." or "/".
func shortTypeURL(url string) string { return url[strings.LastIndexAny(url, "./")+1:] }

// formatAge formats a duration with one unit or two, such as 23h59m or 2m5s.
func formatAge(d time.Duration) string {
	switch {
	case d < time.Hour:
		return d.Round(time.Second).String()
	case d < 48*time.Hour:
		return strings.TrimSuffix(d.Round(time.Minute).String(), "0s")
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}
