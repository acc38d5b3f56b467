package inspect

import (
	"context"
	"fmt"
	"net/http"
)

// flags are what an Envoy finds out about an endpoint by itself, and the words for it, the gravest first. What it was told
// of the endpoint's health counts where none of them is set.
var flags = []struct{ flag, word string }{
	{"failedOutlierCheck", "EJECTED"},
	{"failedActiveHealthCheck", "FAILED CHECK"},
	{"excludedViaImmediateHcFail", "FAILED CHECK"},
	{"pendingActiveHc", "UNCHECKED"},
	{"failedActiveDegradedCheck", "DEGRADED"},
	{"pendingDynamicRemoval", "LEAVING"},
}

// addHealth says of endpoints, in the field "health", what the Envoy thinks of them at the moment.
func (a *Admin) addHealth(ctx context.Context, endpoints []Resource) error {
	data, err := a.call(ctx, http.MethodGet, "clusters?format=json")
	if err != nil {
		return err
	}
	t, err := parseTree(data)
	if err != nil {
		return fmt.Errorf("reading what Envoy thinks of its endpoints: %w", err)
	}
	seen := map[[2]string]string{} // by cluster and address
	for _, c := range t.at("clusterStatuses").list() {
		for _, h := range c.at("hostStatuses").list() {
			seen[[2]string{c.at("name").text(), h.at("address").address()}] = health(h.at("healthStatus"))
		}
	}
	for _, r := range endpoints {
		for _, group := range (tree{r.Body}).at("endpoints").list() {
			for _, e := range group.at("lbEndpoints").list() {
				known := seen[[2]string{r.Name, e.at("endpoint", "address").address()}]
				if fields, ok := e.v.(map[string]any); ok && known != "" {
					fields["health"] = known
				}
			}
		}
	}
	return nil
}

func health(status tree) string {
	for _, f := range flags {
		if status.at(f.flag).text() == "true" {
			return f.word
		}
	}
	return status.at("edsHealthStatus").text()
}
