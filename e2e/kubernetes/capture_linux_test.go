package kubernetes

import (
	"strings"
	"testing"
)

func TestTrafficOfAnInjectedPodGoesThroughItsEnvoy(t *testing.T) {
	c := sharedCluster(t)
	c.deploy(t)
	p := pod("web")
	web, webAddress := c.createRunning(t, injected(p, c.envoySidecar(t, p)))
	db, dbAddress := c.createRunning(t, pod("db"))
	c.waitAnswer(t, "out of the pod", web, dbAddress, "200 through=[outbound] host=db remote="+webAddress)
	c.waitAnswer(t, "into the pod", db, webAddress, "200 through=[inbound] host=web remote=127.0.0.6")
	if answer := c.get(db, dbAddress); !strings.HasPrefix(answer, "200 through=[] host=db") {
		t.Errorf("within a pod that is not captured: %s", answer)
	}
}

func TestBothFamiliesOfAPodGoThroughItsEnvoy(t *testing.T) {
	c := sharedCluster(t)
	c.deploy(t)
	p := pod("web")
	web, _ := c.createRunning(t, injected(p, dualStack(c.envoySidecar(t, p))))
	db, _ := c.createRunning(t, pod("db"))
	_, webAddress := c.addresses(t, web)
	_, dbAddress := c.addresses(t, db)
	c.waitAnswer(t, "out of the pod", web, dbAddress, "200 through=[outbound] host=db remote="+webAddress)
	c.waitAnswer(t, "into the pod", db, webAddress, "200 through=[inbound] host=web remote=[::6]")
	if answer := c.get(db, dbAddress); !strings.HasPrefix(answer, "200 through=[] host=db") {
		t.Errorf("within a pod that is not captured: %s", answer)
	}
}

// TestTransparentPodSeesTheClientAddress has a pod captured by TPROXY, whose proxy runs as injectors have it: as root in the
// proxy's group.
func TestTransparentPodSeesTheClientAddress(t *testing.T) {
	c := sharedCluster(t)
	c.deploy(t)
	p := pod("web")
	sidecar := dualStack(c.envoyWith(t, p, transparentConfig()))
	sidecar["securityContext"] = object{"runAsUser": 0, "runAsGroup": 1337, "capabilities": object{"drop": []string{"ALL"}, "add": []string{"NET_ADMIN"}}}
	web, webAddress := c.createRunning(t, injected(p, sidecar, "sidecar.istio.io/interceptionMode", "TPROXY"))
	db, dbAddress := c.createRunning(t, pod("db"))
	c.waitAnswer(t, "out of the pod", web, dbAddress, "200 through=[outbound] host=db remote="+webAddress)
	c.waitAnswer(t, "into the pod", db, webAddress, "200 through=[inbound] host=web remote="+dbAddress)
	_, webAddress = c.addresses(t, web)
	_, dbAddress = c.addresses(t, db)
	c.waitAnswer(t, "into the pod by IPv6", db, webAddress, "200 through=[inbound] host=web remote="+dbAddress)
}

func TestRefusedPodReportsTheReasonInItsEvents(t *testing.T) {
	c := sharedCluster(t)
	c.deploy(t)
	name := c.create(t, injected(pod("bad"), idleSidecar(), "traffic.sidecar.istio.io/includeOutboundIPRanges", "10.0.0.1"))
	c.waitEvent(t, name, `pod default/bad is not started, because its mesh settings are invalid; annotation traffic.sidecar.istio.io/includeOutboundIPRanges: --istio-service-cidr: "10.0.0.1" is not a CIDR`)
	if phase := c.mustKubectl(t, "get", "pod", name, "-o", "jsonpath={.status.phase}"); phase != "Pending" {
		t.Errorf("the pod is %s", phase)
	}
	c.mustKubectl(t, "annotate", "pod", name, "--overwrite", "traffic.sidecar.istio.io/includeOutboundIPRanges=10.0.0.0/8")
	c.waitFor(t, "the pod starts once it is mended", func() error { return c.checkField("pod/"+name, "{.status.phase}", "Running") })
}
