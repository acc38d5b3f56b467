package analysis

import (
	"cmp"
	"slices"
	"sync"
	"time"
	"weak"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/registry"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
)

// Checker checks successive snapshots of a mesh. It caches the result of the last check, and does not check a
// VirtualService again if the documents to which it refers are unchanged. The zero value is ready to use. It is safe for
// concurrent use.
type Checker struct {
	mu       sync.Mutex
	last     weak.Pointer[snapshot.Snapshot] // weak, because a snapshot retains the resources that were built from it
	problems []config.Problem                // of last
	clean    *cleanRules                     // of last
}

// Check returns findings about invalid references and about settings without effect. Their order is stable: the
// findings of the registry are first. The skipped patches of EnvoyFilters are last, because they are known only after
// resources were built.
func (k *Checker) Check(s *snapshot.Snapshot) []config.Problem {
	ended := snapshotCheck{s: s}
	ended.checkCertificates(time.Now()) // expiry does not change a document
	return slices.Concat(s.Registry.Problems, k.checkDocuments(s), ended.problems, s.EnvoyFilterProblems())
}

// Check returns the result of Checker.Check for a single snapshot.
func Check(s *snapshot.Snapshot) []config.Problem { return new(Checker).Check(s) }

// checkDocuments returns the problems of the rules and policies of a snapshot, sorted by position.
func (k *Checker) checkDocuments(s *snapshot.Snapshot) []config.Problem {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.last.Value() == s {
		return k.problems
	}
	c := newSnapshotCheck(s, k.clean)
	c.checkAll()
	slices.SortStableFunc(c.problems, comparePosition)
	k.last, k.problems, k.clean = weak.Make(s), c.problems, c.clean
	return k.problems
}

// snapshotCheck collects the problems of one snapshot.
type snapshotCheck struct {
	s        *snapshot.Snapshot
	problems []config.Problem
	// suggestions is the number of remaining searches for similar names.
	suggestions int
	// before contains the rules without problems in the last check. clean contains the rules without problems in this
	// check.
	before, clean *cleanRules
	changes       *serviceChanges // difference between the two; set at first use
	// selecting contains the services with a selector by namespace, sorted by hostname.
	selecting map[string][]*registry.Service
	// byLabel contains the services by each label of their selectors; set at first use.
	byLabel map[labelKey][]*registry.Service
	// namespaces are the namespaces that occur in the mesh; set at first use.
	namespaces map[string]bool
	// selective contains the DestinationRules with a workload selector by namespace; set at first use.
	selective map[string][]*snapshot.DestinationRule
	// secrets contains the Secrets of all namespaces by name; set at first use.
	secrets map[string][]*config.SecretSpec
	// selectedNamespaces are the namespaces of the known workloads of the Gateway that is checked.
	selectedNamespaces []string
}

// newSnapshotCheck returns a snapshotCheck without problems. before is the result of the last check, or nil.
func newSnapshotCheck(s *snapshot.Snapshot, before *cleanRules) *snapshotCheck {
	c := &snapshotCheck{s: s, suggestions: maxSuggestions, before: before, clean: newCleanRules(s), selecting: map[string][]*registry.Service{}}
	for _, svc := range s.Registry.Services {
		if len(svc.Selector) > 0 {
			c.selecting[svc.Namespace] = append(c.selecting[svc.Namespace], svc)
		}
	}
	return c
}

func (c *snapshotCheck) checkAll() {
	c.checkVirtualServices()
	c.checkDestinationRules()
	c.checkGateways()
	c.checkSidecars()
	c.checkPolicies()
	c.checkRuleConflicts()
	c.checkGatewayConflicts()
	c.checkSharedAddresses()
	c.checkPortProtocols()
	c.checkSelectors()
	c.checkStrictWithoutSidecar()
	c.checkPeerPorts()
	c.checkTelemetries()
	c.checkPullSecrets()
	c.checkProxyVariables()
	c.checkClaimRoutes()
	c.checkPolicyTargets()
}

// comparePosition orders problems by file, line and column.
func comparePosition(a, b config.Problem) int {
	return cmp.Or(cmp.Compare(a.At.File, b.At.File), cmp.Compare(a.At.Line, b.At.Line), cmp.Compare(a.At.Column, b.At.Column))
}

// reportNoEffect reports a setting that has no effect as written. Settings with their own code use reportWarning.
func (c *snapshotCheck) reportNoEffect(r *config.Resource, field, value, message, remedy string) {
	c.reportWarning(config.NoEffect, r, field, value, message, remedy)
}

func (c *snapshotCheck) reportWarning(code config.Code, r *config.Resource, field, value, message, remedy string) {
	c.report(code, config.Warning, r, field, value, message, remedy)
}

// report records a finding, unless an annotation of the document suppresses it.
func (c *snapshotCheck) report(code config.Code, severity config.Severity, r *config.Resource, field, value, message, remedy string) {
	p := config.Problem{
		Code: code, Severity: severity, Key: r.Key, At: r.PositionOf(field), Field: field, Value: value, Message: message, Remedy: remedy,
	}
	if !config.Suppresses(r.Annotations, p) {
		c.problems = append(c.problems, p)
	}
}

// reportMissing reports that an object is missing. absence is the sentence that states this. missing.Effect describes
// the consequence.
func (c *snapshotCheck) reportMissing(code config.Code, r *config.Resource, field, value, absence string, missing config.MissingObject, remedy string) {
	message := absence
	if missing.Effect != "" {
		message += ": " + missing.Effect
	}
	before := len(c.problems)
	c.reportWarning(code, r, field, value, message, remedy)
	for i := before; i < len(c.problems); i++ {
		c.problems[i].Missing = missing
	}
}

// resolveTarget returns the full name of the service to which host refers, as written in a document of namespace. If
// host is an alias, it returns the name of the alias's service.
func (c *snapshotCheck) resolveTarget(host, namespace string) string {
	return c.s.Registry.Target(c.s.Registry.ResolveHostname(host, namespace))
}

// lookupService returns the service to which host refers, as written in a document of namespace. It returns nil if the
// service does not exist or is not visible to the namespace.
func (c *snapshotCheck) lookupService(host, namespace string) *registry.Service {
	full := c.s.Registry.ResolveHostname(host, namespace)
	for _, svc := range c.s.Registry.ByHostname(c.s.Registry.Target(full)) {
		if svc.IsKnownAs(full, namespace) {
			return svc
		}
	}
	return nil
}
