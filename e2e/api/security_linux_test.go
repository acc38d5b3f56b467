package api

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"
)

// guardedAt is where who has no sidecar finds a port of the guarded workload.
func (w *world) guardedAt(port int) string {
	return net.JoinHostPort(w.instance("guarded").Proxy.String(), fmt.Sprint(port))
}

// answer is what a caller is to get; 0 is no answer at all.
type answer struct {
	from    string
	status  int
	path    string
	headers []string
}

const noAnswer = 0

// answers asks the guarded workload, an outsider by its address and others by its name.
func (w *world) answers(want ...answer) error {
	for _, a := range want {
		at := "guarded.default"
		if a.from == "" {
			at = w.guardedAt(portHTTP)
		}
		got, err := w.get(a.from, "http://"+at+a.path, a.headers...)
		if err != nil {
			got.Status = noAnswer
		}
		if got.Status != a.status {
			return fmt.Errorf("from %q for %q with %q: %d %s %v, want %d", a.from, a.path, a.headers, got.Status, got.Body, err, a.status)
		}
	}
	return nil
}

// hears says whether who sends a line to a port of the guarded workload is answered.
func (w *world) hears(from string, port int, want bool) error {
	at := fmt.Sprintf("guarded.default:%d", port)
	if from == "" {
		at = w.guardedAt(port)
	}
	heard, err := w.say(from, at, "hello", 1)
	answered := err == nil && strings.HasPrefix(heard[0], "guarded ") // and not by a complaint of TLS
	if answered != want {
		return fmt.Errorf("from %q at %s: %q %v", from, at, heard, err)
	}
	return nil
}

// handshakes says whether an outsider with its own certificate gets to speak mutual TLS, as sidecars do, with the guarded
// workload.
func (w *world) handshakes(certificates ...tls.Certificate) (bool, error) {
	ctx, cancel := context.WithTimeout(w.ctx, requestTimeout)
	defer cancel()
	conn, err := w.Dial(ctx, "", "tcp", w.guardedAt(portHTTP))
	if err != nil {
		return false, err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(requestTimeout))
	secured := tls.Client(conn, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"istio-http/1.1", "istio", "http/1.1"}, Certificates: certificates})
	fmt.Fprintf(secured, "GET / HTTP/1.1\r\nHost: guarded\r\n\r\n")
	n, _ := secured.Read(make([]byte, 12))
	return n > 0, nil
}

const strict = `
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: $HOST}
spec: {selector: {matchLabels: {app: guarded}}, mtls: {mode: STRICT}PORTS}
`

func TestWhoIsNotOfTheMeshIsRefused(t *testing.T) {
	runRows(t, []row{
		{name: "strict refuses plaintext", alone: []string{"guarded"}, docs: strings.Replace(strict, "PORTS", "", 1), check: func(w *world, _ string) error {
			if err := w.answers(answer{from: "client", status: 200}, answer{from: "other", status: 200}, answer{from: "", status: noAnswer}); err != nil {
				return err
			}
			for _, port := range []int{portTCP, portServerFirst, portUndeclared, portUntold} {
				if err := w.hears("", port, false); err != nil {
					return err
				}
			}
			if _, err := w.getTLS("", w.guardedAt(portTLS), "server.example"); err == nil {
				return errors.New("TLS of somebody outside of the mesh passes")
			}
			for _, certificates := range [][]tls.Certificate{nil, {w.someone}} {
				if in, err := w.handshakes(certificates...); err != nil || in {
					return fmt.Errorf("with %d certificates of others: let in %t, %v", len(certificates), in, err)
				}
			}
			if err := w.hears("client", portTCP, true); err != nil {
				return err
			}
			return w.hears("client", portServerFirst, true)
		}},
		{name: "strict but for a port", alone: []string{"guarded"}, docs: strings.Replace(strict, "PORTS", ", portLevelMtls: {8080: {mode: PERMISSIVE}, 9000: {mode: DISABLE}}", 1), check: func(w *world, _ string) error {
			return errors.Join(w.answers(answer{from: "client", status: 200}, answer{from: "", status: 200}),
				w.hears("", portTCP, true), w.hears("client", portTCP, true), w.hears("", portServerFirst, false), w.hears("client", portServerFirst, true))
		}},
	})
}
