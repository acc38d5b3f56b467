package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// nameTable returns a control plane's table of Kubernetes services, each specified as name.namespace and address.
func nameTable(services ...[2]string) *[]byte {
	table := []byte{}
	for _, s := range services {
		name, namespace, _ := strings.Cut(s[0], ".")
		var info []byte
		for field, value := range map[protowire.Number]string{1: s[1], 2: "Kubernetes", 3: name, 4: namespace} {
			info = protowire.AppendString(protowire.AppendTag(info, field, protowire.BytesType), value)
		}
		entry := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), s[0]+".svc.cluster.local")
		entry = protowire.AppendBytes(protowire.AppendTag(entry, 2, protowire.BytesType), info)
		table = protowire.AppendBytes(protowire.AppendTag(table, 1, protowire.BytesType), entry)
	}
	return &table
}

// resolve queries the agent like an application whose DNS traffic is captured.
func (s *agentSetup) resolve(t *testing.T, name string) ([]string, error) {
	t.Helper()
	r := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, network, s.address+":15053")
	}}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	found, err := r.LookupHost(ctx, name)
	slices.Sort(found)
	return found, err
}

func (r *agentProcess) checkResolves(name string, want ...string) {
	r.t.Helper()
	r.eventually(name+" is found", func() error {
		if got, err := r.resolve(r.t, name); err != nil || !slices.Equal(got, want) {
			return fmt.Errorf("%v, %v", got, err)
		}
		return nil
	})
}

// newDNSSetup returns a sidecar with DNS server, and with a resolver that does not answer.
func newDNSSetup(t *testing.T, address string) *agentSetup {
	s := newSetup(t, address)
	s.write(t, "resolv.conf", "nameserver "+address+"\nsearch books.svc.cluster.local svc.cluster.local cluster.local\noptions ndots:5\n")
	s.env = append(s.env, "ISTIO_META_DNS_CAPTURE=true", "DNS_RESOLV_CONF="+filepath.Join(s.dir, "resolv.conf"))
	s.cp.nameTableResults = make(chan string, 100)
	return s
}

func TestReadinessWaitsForDNSNames(t *testing.T) {
	t.Parallel()
	s := newDNSSetup(t, "127.156.1.1")
	stop := s.cp.start(t)
	r := s.start(t)
	r.eventually("only the names are missing", func() error {
		ready, reasons, err := r.readiness()
		if err == nil && (ready || reasons["xds"] != "" || reasons["envoy"] != "" || !strings.Contains(reasons["dns"], "not sent a name table yet")) {
			err = fmt.Errorf("ready %v, %v", ready, reasons)
		}
		return err
	})
	if status, body, err := r.http("GET", "15020/debug/ndsz"); err != nil || status != 404 || body != "{}" {
		t.Errorf("without names /debug/ndsz answers %d %s, %v", status, body, err)
	}
	if _, err := s.resolve(t, "reviews.books."); err == nil {
		t.Error("a name was answered before the first table")
	}

	s.cp.names.Store(nameTable([2]string{"reviews.books", "10.96.0.7"}, [2]string{"pay.bank", "10.96.0.8"}))
	stop()
	s.cp.start(t)
	r.waitReady()
	r.checkResolves("reviews.", "10.96.0.7")
	r.checkResolves("reviews.books.svc.cluster.local.", "10.96.0.7")
	r.checkResolves("pay.bank.", "10.96.0.8")
	if answer := <-s.cp.nameTableResults; answer != "" {
		t.Errorf("the table was refused: %s", answer)
	}
	_, body, err := r.http("GET", "15020/debug/ndsz")
	if err != nil || !strings.Contains(body, `"reviews.books.svc.cluster.local":{"ips":["10.96.0.7"],"registry":"Kubernetes","shortname":"reviews","namespace":"books"}`) {
		t.Errorf("/debug/ndsz: %s, %v", body, err)
	}
	if got, _ := s.cp.node.Load().GetMetadata().AsMap()["DNS_CAPTURE"].(string); got != "true" {
		t.Errorf("the control plane received DNS_CAPTURE=%q", got)
	}
	out, code := r.command("dns", "lookup", "reviews")
	if code != 0 || !strings.Contains(out, "10.96.0.7") || !strings.Contains(out, "host reviews.books.svc.cluster.local of the mesh, found by name") {
		t.Errorf("dns lookup: %d\n%s", code, out)
	}
	if out, code = r.command("dns", "lookup", "10.96.0.8", "-o", "json"); code != 0 || !json.Valid([]byte(out)) || !strings.Contains(out, "pay.bank.svc.cluster.local.") {
		t.Errorf("dns lookup of an address: %d\n%s", code, out)
	}
	r.signal(syscall.SIGTERM)
	r.expectExit(0)
}

func TestDNSNamesSurviveRestartWithoutControlPlane(t *testing.T) {
	t.Parallel()
	s := newDNSSetup(t, "127.156.1.2")
	s.cp.names.Store(nameTable([2]string{"reviews.books", "10.96.0.7"}))
	stop := s.cp.start(t)
	r := s.start(t)
	r.waitReady()
	r.checkResolves("reviews.", "10.96.0.7")
	testenv.Eventually(t, "the names are stored", func() error {
		_, err := os.Stat(filepath.Join(s.dir, "etc/istio/proxy/names"))
		return err
	})

	// A malformed table is rejected and does not replace the current one.
	<-s.cp.nameTableResults
	s.cp.names.Store(&[]byte{0xff})
	stop()
	stop = s.cp.start(t)
	select {
	case answer := <-s.cp.nameTableResults:
		if !strings.Contains(answer, "protobuf") {
			t.Errorf("the broken table was answered with %q", answer)
		}
	case <-time.After(testTimeout):
		t.Fatal("the broken table was not answered")
	}
	r.checkResolves("reviews.", "10.96.0.7")
	stop()
	r.signal(syscall.SIGKILL)
	r.waitExit()

	r = s.start(t)
	r.checkResolves("reviews.", "10.96.0.7")
	_, reasons, err := r.readiness()
	if err != nil || !strings.Contains(reasons["dns"], "using the name table on disk") {
		t.Errorf("readiness does not report it: %v, %v", reasons, err)
	}
	s.cp.names.Store(nameTable([2]string{"reviews.books", "10.96.0.9"}))
	s.cp.start(t)
	r.waitReady()
	r.checkResolves("reviews.", "10.96.0.9")
}

func TestDNSServerRunsOnlyIfEnabled(t *testing.T) {
	testenv.InDir(t, nil)
	for _, c := range []struct {
		kind string
		vars []string
		on   bool
		warn string
	}{
		{kind: "sidecar"},
		{kind: "sidecar", vars: []string{"ISTIO_META_DNS_CAPTURE=true"}, on: true},
		{kind: "router", vars: []string{"ISTIO_META_DNS_CAPTURE=true"}, warn: "ISTIO_META_ENABLE_DNS_SERVER"},
		{kind: "router", vars: []string{"ISTIO_META_ENABLE_DNS_SERVER=true"}, on: true},
		{kind: "sidecar", vars: []string{`PROXY_CONFIG={"proxyMetadata":{"ISTIO_META_DNS_CAPTURE":"true"}}`}, on: true},
	} {
		in := env(c.vars...)
		in.Flags.Type = c.kind
		got := resolve(t, in)
		if (got.DNS != nil) != c.on || c.warn != "" && !strings.Contains(strings.Join(got.Warnings, "\n"), c.warn) {
			t.Errorf("%s %v: %+v, %q", c.kind, c.vars, got.DNS, got.Warnings)
		}
	}
	bound := resolve(t, env("ISTIO_META_DNS_CAPTURE=true", "PROXY_BIND_ADDRESS=127.0.0.9", "DNS_PROXY_ADDR="))
	if bound.DNS.Listen != "127.0.0.9:15053" {
		t.Errorf("it listens at %s", bound.DNS.Listen)
	}
	forwards := resolve(t, env("ISTIO_META_DNS_CAPTURE=true", "DNS_PROXY_ADDR=127.0.0.1:53"))
	if forwards.DNS.ForwardWithoutTable != (os.Geteuid() == 0) {
		t.Errorf("on port 53: %+v", forwards.DNS)
	}
	if got := forwards.Identity.Metadata["DNS_PROXY_ADDR"]; got != "127.0.0.1:53" {
		t.Errorf("the control plane receives DNS_PROXY_ADDR %v", got)
	}
}

func TestUsedDNSPortStopsAgentWithReason(t *testing.T) {
	t.Parallel()
	s := newDNSSetup(t, "127.156.1.3")
	taken, err := net.Listen("tcp", s.address+":15053")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	r := s.start(t)
	if code := r.waitExit(); code == 0 || !strings.Contains(r.out.String(), "DNS_PROXY_ADDR") || !strings.Contains(r.out.String(), s.address+":15053") {
		t.Errorf("exit code %d:\n%s", code, r.out)
	}
}
