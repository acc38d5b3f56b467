package inspect

import (
	"context"
	"fmt"
	"net/http"
)

// healthFlags lists the health states that Envoy itself determines and the texts that the table shows for them, the
// most severe state first. If no state is set, the table shows the health status in the EDS response.
var healthFlags = []struct{ flag, word string }{
	{"failedOutlierCheck", "EJECTED"},
	{"failedActiveHealthCheck", "FAILED CHECK"},
	{"excludedViaImmediateHcFail", "FAILED CHECK"},
	{"pendingActiveHc", "UNCHECKED"},
	{"failedActiveDegradedCheck", "DEGRADED"},
	{"pendingDynamicRemoval", "LEAVING"},
}

// addHealth sets the field "health" of endpoints to the health that Envoy currently reports.
func (a *Admin) addHealth(ctx context.Context, endpoints []Resource) error {
	data, err := a.call(ctx, http.MethodGet, "clusters?format=json")
	if err != nil {
		return err
	}
	t, err := parseTree(data)
	if err != nil {
		return fmt.Errorf("reading the health of endpoints from Envoy: %w", err)
	}
	seen := map[[2]string]string{} // by cluster and address
	for _, c := range t.lookup("clusterStatuses").list() {
		for _, h := range c.lookup("hostStatuses").list() {
			seen[[2]string{c.lookup("name").text(), h.lookup("address").address()}] = health(h.lookup("healthStatus"))
		}
	}
	for _, r := range endpoints {
		for _, group := range (tree{r.Body}).lookup("endpoints").list() {
			for _, e := range group.lookup("lbEndpoints").list() {
				known := seen[[2]string{r.Name, e.lookup("endpoint", "address").address()}]
				if fields, ok := e.v.(map[string]any); ok && known != "" {
					fields["health"] = known
				}
			}
		}
	}
	return nil
}

func health(status tree) string {
	for _, f := range healthFlags {
		if status.lookup(f.flag).text() == "true" {
			return f.word
		}
	}
	return status.lookup("edsHealthStatus").text()
}
