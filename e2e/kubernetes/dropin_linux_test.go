package kubernetes

import (
	"fmt"
	"testing"
)

// withValidation adds the init container that Istio's injector adds to pods where a CNI plugin redirects. It has no
// privileges, and only verifies that traffic is redirected.
func withValidation(p object) object {
	annotations := p["metadata"].(object)["annotations"].(object)
	annotations["sidecar.istio.io/status"] = `{"initContainers":["istio-validation"],"containers":["istio-proxy"],"volumes":["istio-envoy"],"imagePullSecrets":null,"revision":"default"}`
	annotations["sidecar.istio.io/interceptionMode"] = "REDIRECT"
	annotations["traffic.sidecar.istio.io/includeOutboundIPRanges"] = "*"
	annotations["traffic.sidecar.istio.io/excludeOutboundIPRanges"] = ""
	annotations["traffic.sidecar.istio.io/includeInboundPorts"] = "*"
	annotations["traffic.sidecar.istio.io/excludeInboundPorts"] = "15020,15021,15090"
	p["spec"].(object)["initContainers"] = []any{object{
		"name": "istio-validation", "image": proxyImage, "imagePullPolicy": "Never",
		"args": []string{"istio-iptables", "-p", "15001", "-z", "15006", "-u", "1337", "-m", "REDIRECT", "-i", "*", "-x", "", "-b", "*", "-d", "15090,15021,15020",
			"--log_output_level=default:info", "--run-validation", "--skip-rule-apply"},
		"securityContext": object{"allowPrivilegeEscalation": false, "privileged": false, "readOnlyRootFilesystem": true, "runAsNonRoot": true,
			"runAsUser": 1337, "runAsGroup": 1337, "capabilities": object{"drop": []string{"ALL"}}},
	}}
	return p
}

// TestInjectedPodStartsWhereItIsCapturedAndNotBefore has a pod as Istio's injector leaves it, with this project's image for
// the sidecar's.
func TestInjectedPodStartsWhereItIsCapturedAndNotBefore(t *testing.T) {
	c := sharedCluster(t)
	c.deploy(t)
	p := pod("web")
	web, webAddress := c.createRunning(t, withValidation(injected(p, c.envoySidecar(t, p))))
	db, dbAddress := c.createRunning(t, pod("db"))
	c.waitAnswer(t, "out of the pod", web, dbAddress, "200 through=[outbound] host=db")
	c.waitAnswer(t, "into the pod", db, webAddress, "200 through=[inbound] host=web")
	c.remove(t)
	q := pod("early")
	early := c.create(t, withValidation(injected(q, c.envoySidecar(t, q))))
	const code = `{.status.initContainerStatuses[0].state.terminated.exitCode}{.status.initContainerStatuses[0].lastState.terminated.exitCode}`
	c.waitFor(t, "the pod is held back", func() error {
		got, err := c.kubectl("get", "pod", early, "-o", "jsonpath="+code)
		if err == nil && got != "126" && got != "126126" {
			err = fmt.Errorf("exit code %q", got)
		}
		return err
	})
	c.deploy(t)
	c.waitFor(t, "the pod is mended and starts", func() error {
		return c.checkField("pod/"+early, `{.status.conditions[?(@.type=="Ready")].status}`, "True")
	})
	c.waitAnswer(t, "out of the pod", early, dbAddress, "200 through=[outbound] host=db")
	c.waitEvent(t, early, "Normal RedirectionRepaired")
}
