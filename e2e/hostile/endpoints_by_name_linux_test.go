package hostile

import (
	"fmt"
	"net/http"
	"os/exec"
	"strings"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// endpointNameAttacks are attempts to reach a proxy's own ports through DNS names that resolve to a loopback address.
var endpointNameAttacks = []attack{{
	name:     "a tenant's DNS names lead through a shared gateway to its admin and status ports",
	position: tenant,
	limit:    "no connection: 503 for each, and a finding for each document",
	service:  "the gateway serves names of other machines, with each resolution",
	run:      attackByNames,
}}

// loopbackName and the names below it resolve to the gateway's loopback address, shopName to the shop's.
const (
	loopbackName = "lo.attacker.example"
	shopName     = "shop.attacker.example"
)

// namedEntry is a tenant's service without listed endpoints, and its route. more has further fields of the route.
func namedEntry(name, host, resolution string, target int, more string) string {
	entry := fmt.Sprintf(`---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: %s, namespace: tenant}
spec: {hosts: ["%s"], resolution: %s, ports: [{number: 80, name: port, protocol: HTTP, targetPort: %d}]}
`, name, host, resolution, target)
	return entry + strings.Replace(tenantRoute(name, `"`+host+`"`), "http: [{", "http: [{"+more, 1)
}

// refusedByName are the documents that lead to reserved ports: the name of each, its kind, and its text. Those of the shop
// are legitimate.
func refusedByName() map[string]string {
	address := func(port int) string { return fmt.Sprintf("{address: %s, ports: {port: %d}}", loopbackName, port) }
	rewrite := func(host string) string { return "rewrite: {authority: '" + host + "'}, " }
	return map[string]string{
		"ServiceEntry dns":          tenantEntry("dns", "HTTP", "DNS", address(15000)),
		"ServiceEntry dns-host":     namedEntry("dns-host", "host."+loopbackName, "DNS", 15000, ""),
		"ServiceEntry dns-one":      tenantEntry("dns-one", "HTTP", "DNS_ROUND_ROBIN", address(15000)),
		"ServiceEntry dns-status":   tenantEntry("dns-status", "HTTP", "DNS", address(15020)),
		"ServiceEntry dns-ready":    tenantEntry("dns-ready", "HTTP", "DNS", address(15021)),
		"ServiceEntry dns-stats":    tenantEntry("dns-stats", "HTTP", "DNS", address(15090)),
		"ServiceEntry none":         namedEntry("none", "none."+loopbackName, "NONE", 15000, ""),
		"ServiceEntry none-any":     namedEntry("none-any", "*.none-any."+loopbackName, "NONE", 15000, rewrite("a.none-any."+loopbackName)),
		"ServiceEntry dynamic":      namedEntry("dynamic", "dynamic."+loopbackName, "DYNAMIC_DNS", 15000, ""),
		"ServiceEntry dynamic-any":  namedEntry("dynamic-any", "*.dynamic-any."+loopbackName, "DYNAMIC_DNS", 15000, rewrite("a.dynamic-any."+loopbackName)),
		"ServiceEntry dynamic-port": namedEntry("dynamic-port", "*.dynamic-port."+loopbackName, "DYNAMIC_DNS", 15000, rewrite("a.dynamic-port."+loopbackName+":80")),
		"Service alias": "---\napiVersion: v1\nkind: Service\nmetadata: {name: alias, namespace: tenant}\nspec: {type: ExternalName, externalName: " + loopbackName +
			", ports: [{port: 15000, name: http}]}\n" + strings.Replace(tenantRoute("alias", "alias.tenant.svc.cluster.local"), "number: 80", "number: 15000", 1),
		"ServiceEntry workload": "---\napiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata: {name: lo, namespace: tenant}\nspec: {address: " + loopbackName + ", labels: {app: lo}}\n" +
			"---\napiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: workload, namespace: tenant}\n" +
			"spec: {hosts: [workload.tenant.internal], resolution: DNS, ports: [{number: 80, name: port, protocol: HTTP, targetPort: 15000}], workloadSelector: {labels: {app: lo}}}\n" +
			tenantRoute("workload", "workload.tenant.internal"),
	}
}

// servedByName are the documents that lead to other machines and ports.
func servedByName() map[string]string {
	return map[string]string{
		"shop-dns":     tenantEntry("shop-dns", "HTTP", "DNS", "{address: "+shopName+", ports: {port: 8080}}"),
		"shop-one":     namedEntry("shop-one", "one."+shopName, "DNS_ROUND_ROBIN", 8080, ""),
		"shop-none":    namedEntry("shop-none", "none."+shopName, "NONE", 8080, ""),
		"shop-dynamic": namedEntry("shop-dynamic", "*.dynamic."+shopName, "DYNAMIC_DNS", 8080, "rewrite: {authority: 'a.dynamic."+shopName+":15000'}, "),
		// The outsider's request selects the host.
		"shop-any": namedEntry("shop-any", "*.tenant.example", "DYNAMIC_DNS", 8080, ""),
	}
}

func attackByNames(t *testing.T) {
	documents := func(string) string {
		var all strings.Builder
		for _, list := range []map[string]string{refusedByName(), servedByName()} {
			for _, text := range list {
				all.WriteString(text)
			}
		}
		return all.String()
	}
	e := startEdge(t, documents,
		"127.0.0.1 "+loopbackName+" host."+loopbackName+" none."+loopbackName+" dynamic."+loopbackName,
		"127.0.0.1 a.none-any."+loopbackName+" a.dynamic-any."+loopbackName+" a.dynamic-port."+loopbackName,
		edgeShop+" "+shopName+" one."+shopName+" none."+shopName+" a.dynamic."+shopName+" shop-any.tenant.example")
	e.serve("tcp", edgeShop+":8080", "the shop")
	e.requireServedNames(t)

	for document := range refusedByName() {
		_, name, _ := strings.Cut(document, " ")
		t.Run("a page is read by "+name, func(t *testing.T) { e.requireRefused(t, http.MethodGet, name, "/config_dump") })
	}
	for document := range refusedByName() {
		_, name, _ := strings.Cut(document, " ")
		t.Run("the proxy is ended by "+name, func(t *testing.T) { e.requireRefused(t, http.MethodPost, name, "/quitquitquit") })
	}
	t.Run("the port is in the request", func(t *testing.T) {
		for _, port := range []string{"15000", "015000", "15020"} {
			if code, body := e.request(t, http.MethodGet, "https://shop-any.tenant.example:"+port+"/config_dump"); code != http.StatusOK || body != "the shop" {
				t.Errorf("port %s: %d %.200s", port, code, body)
			}
		}
	})
	e.requireServedNames(t)
	t.Run("each document has a finding", e.requireNameFindings)
}

// requireServedNames fails the test unless the gateway serves the names of other machines.
func (e *sharedEdge) requireServedNames(t *testing.T) {
	t.Helper()
	for name := range servedByName() {
		testenv.Eventually(t, name+" is served", func() error {
			if code, body := e.request(t, http.MethodGet, "https://"+name+".tenant.example/"); code != http.StatusOK || body != "the shop" {
				return fmt.Errorf("%d %q", code, body)
			}
			return nil
		})
	}
}

// requireNameFindings fails the test unless analyze and the control plane's log have a finding for each of the tenant's
// documents, except for the legitimate ones.
func (e *sharedEdge) requireNameFindings(t *testing.T) {
	report, err := exec.Command(testenv.Bin(t, "pilotfish"), "analyze", e.path("config"), "-o", "lines").CombinedOutput()
	if err == nil {
		t.Error("analyze finds nothing")
	}
	for document := range refusedByName() {
		document = strings.Replace(document, " ", " tenant/", 1)
		testenv.Eventually(t, "the log has the finding of "+document, func() error { return findingOf(document, e.log.String()) })
		if err := findingOf(document, string(report)); err != nil {
			t.Errorf("analyze: %v", err)
		}
	}
	for name := range servedByName() {
		if findingOf("ServiceEntry tenant/"+name, string(report)) == nil {
			t.Errorf("%s has a finding", name)
		}
	}
}
