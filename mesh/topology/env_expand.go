package topology

import (
	"fmt"
	"regexp"
	"strings"
)

// upstreamPrefix is the prefix of environment variables that contain an upstream's address.
const upstreamPrefix = "UPSTREAM_"

var variablePattern = regexp.MustCompile(`\$\$\{|\$\{[^}]*\}`)

// ExpandVariables replaces ${NAME} by its value, and $${ by ${. Other dollar signs are left unchanged for shell
// commands.
func ExpandVariables(text string, variables map[string]string) (string, error) {
	var unknown error
	expanded := variablePattern.ReplaceAllStringFunc(text, func(token string) string {
		if token == "$${" {
			return "${"
		}
		name := token[2 : len(token)-1]
		value, ok := variables[name]
		if !ok && unknown == nil {
			unknown = fmt.Errorf("the variable %q does not exist", name)
		}
		return value
	})
	return expanded, unknown
}

// variableNames returns the names of the variables that a workload's command and environment may use.
func (w *Workload) variableNames() []string {
	names := []string{"NAME", "WORKLOAD", "NAMESPACE", "SERVICE_ACCOUNT", "APP_ADDRESS", "PROXY_ADDRESS", "HTTP_PROXY", "DNS_ADDRESS", "PORT"}
	for _, p := range w.Ports {
		if p.Name != "" {
			names = append(names, portVariable(p.Name))
		}
	}
	for _, u := range w.Upstreams {
		names = append(names, u.Variable())
	}
	return append(names, "TOPOLOGY_DIR", "PILOTFISH")
}

// Variables returns the values of the workload's variables for one instance.
func (i *Instance) Variables(topologyDir, self string) map[string]string {
	w := i.Workload
	vars := map[string]string{
		"NAME": i.Name, "WORKLOAD": w.Name, "NAMESPACE": w.Namespace, "SERVICE_ACCOUNT": w.ServiceAccount,
		"APP_ADDRESS": i.App.String(), "PROXY_ADDRESS": i.Proxy.String(), "HTTP_PROXY": i.HTTPProxyURL(),
		"DNS_ADDRESS": i.DNS.String(),
		"PORT":        "", "TOPOLOGY_DIR": topologyDir, "PILOTFISH": self,
	}
	if port := w.FirstPort(); port != 0 {
		vars["PORT"] = fmt.Sprint(port)
	}
	for _, p := range w.Ports {
		vars[portVariable(p.Name)] = fmt.Sprint(p.Port)
	}
	for n, u := range w.Upstreams {
		vars[u.Variable()] = i.upstreamTarget(n)
	}
	return vars
}

func portVariable(name string) string { return "PORT_" + variableSuffix(name) }

// Variable returns the name of the environment variable that contains the upstream's address.
func (u Upstream) Variable() string {
	name := u.Name
	if name == "" {
		name = strings.SplitN(u.Host, ".", 2)[0]
	}
	return upstreamPrefix + variableSuffix(name)
}

func variableSuffix(name string) string {
	return strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
}
