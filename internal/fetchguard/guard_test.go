package fetchguard_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/fetchguard"
)

func TestGuardRefusesAddressesOfCredentials(t *testing.T) {
	guard := fetchguard.Guard{Blocked: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}}
	for address, allowed := range map[string]bool{
		"169.254.169.254": false, "fe80::1": false, "fe80::1%eth0": false, "fd00:ec2::254": false, "fd20:ce::254": false,
		"100.100.100.200": false, "168.63.129.16": false, "192.0.0.192": false, "0.0.0.0": false, "::": false, "224.0.0.1": false,
		"::ffff:169.254.169.254": false, "64:ff9b::a9fe:a9fe": false, "::169.254.169.254": false, "2002:a9fe:a9fe::1": false,
		"::ffff:0:169.254.169.254": false, "10.1.2.3": false, "::ffff:10.1.2.3": false,
		"10.2.2.3": true, "127.0.0.1": true, "::1": true, "192.0.2.1": true, "2001:db8::1": true, "64:ff9b::c000:201": true,
	} {
		err := guard.Check(netip.MustParseAddr(address))
		if (err == nil) != allowed || err != nil && !errors.Is(err, fetchguard.ErrBlocked) {
			t.Errorf("%s: %v", address, err)
		}
	}
	if guard.Check(netip.Addr{}) == nil {
		t.Error("an invalid address is allowed")
	}
	guard.NoLoopback = true
	for _, address := range []string{"127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1", "64:ff9b::7f00:1"} {
		if guard.Check(netip.MustParseAddr(address)) == nil {
			t.Errorf("%s is allowed although loopback addresses are blocked", address)
		}
	}
}

func TestHostsOfProxiedRequestsAreChecked(t *testing.T) {
	guard := fetchguard.Guard{NoLoopback: true}
	for host, allowed := range map[string]bool{
		"169.254.169.254": false, "localhost": false, "fd00:ec2::254": false, "192.0.2.1": true, "no-such-host.invalid": true,
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		if err := guard.CheckHost(ctx, host); (err == nil) != allowed {
			t.Errorf("%s: %v", host, err)
		}
		cancel()
	}
}

func TestNetworksAreParsedFromAList(t *testing.T) {
	networks, err := fetchguard.ParseNetworks(" 10.0.0.0/8, fd00::1,")
	if err != nil || len(networks) != 2 || networks[1] != netip.MustParsePrefix("fd00::1/128") {
		t.Errorf("%v, %v", networks, err)
	}
	if _, err := fetchguard.ParseNetworks("10.0.0.0/8,all"); err == nil || !strings.Contains(err.Error(), `"all"`) {
		t.Errorf("error %v", err)
	}
}

// fetchErrors returns the errors of requests whose response contains the word "secret".
func fetchErrors(t *testing.T) map[string]error {
	t.Helper()
	redirecting := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://secret.invalid/secret", http.StatusFound)
	}))
	t.Cleanup(redirecting.Close)
	encrypted := httptest.NewTLSServer(http.NotFoundHandler())
	t.Cleanup(encrypted.Close)
	found := map[string]error{}
	for name, url := range map[string]string{
		"malformed response": "http://" + serveText(t, "SSH-2.0-secret\r\n"),
		"malformed header":   "http://" + serveText(t, "HTTP/1.1 200 OK\r\nsecret\r\n\r\n"),
		"redirect":           redirecting.URL,
		"certificate":        encrypted.URL,
		"no TLS":             strings.Replace(redirecting.URL, "http:", "https:", 1),
		"closed":             "http://" + serveText(t, ""),
	} {
		response, err := http.Get(url)
		if err == nil {
			_ = response.Body.Close()
			t.Errorf("%s: no error", name)
		}
		found[name] = err
	}
	return found
}

// serveText sends a text on each connection and closes the connection.
func serveText(t *testing.T, text string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Read(make([]byte, 4096))
			_, _ = conn.Write([]byte(text))
			_ = conn.Close()
		}
	}()
	return l.Addr().String()
}

func TestErrorsQuoteNothingOfTheResponse(t *testing.T) {
	const fallback = "its response is not valid HTTP"
	errs := fetchErrors(t)
	for name, want := range map[string]string{
		"malformed response": fallback, "malformed header": fallback, "redirect": "resolving the host name",
		"certificate": "its authority is unknown", "no TLS": "the server does not use TLS", "closed": "the server closed the connection",
	} {
		hidden := fetchguard.HideAnswer(errs[name], fallback)
		if text := hidden.Error(); strings.Contains(text, "secret") || !strings.Contains(text, want) {
			t.Errorf("%s: %v", name, hidden)
		}
		if !errors.Is(hidden, errs[name]) {
			t.Errorf("%s: the cause is lost", name)
		}
	}
}
