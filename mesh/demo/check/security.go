package check

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/pilotfish-mesh/pilotfish/mesh/topology"
)

// strictMutualTLS checks that the inbound ports of all workloads except gateways refuse plaintext, and TLS without a
// client certificate.
func strictMutualTLS(ctx context.Context, t *Target) (string, error) {
	ports := 0
	var plain, bare string
	for _, i := range t.Mesh.Status(ctx).Instances {
		if i.Type != topology.Service {
			continue
		}
		address := net.JoinHostPort(i.ProxyAddress, "9080")
		var err error
		if plain, err = describeRefusal(t.probePlaintext(ctx, address)); err != nil {
			return "", fmt.Errorf("%s did not refuse plaintext at %s: %w", i.Name, address, err)
		}
		if bare, err = describeRefusal(t.probeTLS(ctx, address)); err != nil {
			return "", fmt.Errorf("%s did not refuse TLS without a client certificate at %s: %w", i.Name, address, err)
		}
		ports++
	}
	if ports == 0 {
		return "", errors.New("the mesh has no service with an inbound port")
	}
	return fmt.Sprintf("%d of %d inbound ports refused plaintext (%s) and TLS without a client certificate (%s)", ports, ports, plain, bare), nil
}

// describeRefusal describes how the server refused the connection. It returns an error if the server did not refuse it:
// the server responded, it did not respond in time, or no process listens on the port.
func describeRefusal(answer string, err error) (string, error) {
	switch {
	case err == nil:
		return "", fmt.Errorf("the server responded %q", answer)
	case errors.Is(err, syscall.ECONNREFUSED):
		return "", fmt.Errorf("no process listens on the port: %w", err)
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded):
		return "", fmt.Errorf("the server neither responded nor closed the connection: %w", err)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "closed", nil
	case errors.Is(err, syscall.ECONNRESET):
		return "reset", nil
	}
	text := err.Error()
	return text[strings.LastIndex(text, ": ")+len(": "):], nil
}

func (t *Target) probePlaintext(ctx context.Context, address string) (string, error) {
	conn, err := t.Mesh.Dial(ctx, "", "tcp", address)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	return firstLine(conn)
}

func (t *Target) probeTLS(ctx context.Context, address string) (string, error) {
	conn, err := t.Mesh.Dial(ctx, "", "tcp", address)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	secure := tls.Client(conn, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"istio-http/1.1", "istio", "http/1.1"}})
	if err := secure.HandshakeContext(ctx); err != nil {
		return "", err
	}
	return firstLine(secure)
}

// firstLine sends an HTTP request and returns the first line of the response. With TLS 1.3, the server reports a
// missing certificate only after the handshake, so this function returns that error. It reads even if the write failed,
// because the server may have sent the reason before.
func firstLine(conn net.Conn) (string, error) {
	_ = conn.SetDeadline(time.Now().Add(3 * time.Second))
	_, writeErr := fmt.Fprint(conn, "GET /healthz HTTP/1.1\r\nHost: reviews\r\nConnection: close\r\n\r\n")
	line, err := bufio.NewReader(conn).ReadString('\n')
	if line != "" {
		return strings.TrimSpace(line), nil
	}
	return "", cmp.Or(err, writeErr)
}

// callersIdentity checks that the services identify their callers correctly, and that a client cannot forge its identity.
func callersIdentity(ctx context.Context, t *Target) (string, error) {
	r, err := t.outsideClient().expect(ctx, http.StatusOK, t.Gateway+"/", headers{"x-user": "ada"})
	if err != nil {
		return "", err
	}
	domain := "spiffe://" + t.Mesh.Status(ctx).TrustDomain
	details, reviews, ratings := r.Answer.Upstream("details"), r.Answer.Upstream("reviews"), ratingsCall(r.Answer)
	if details == nil || reviews == nil || ratings == nil || !details.OK() || !reviews.OK() || !ratings.OK() {
		return "", fmt.Errorf("the page is not complete: %s", r)
	}
	for _, seen := range []struct{ by, got, want string }{
		{"page", r.Answer.Caller, domain + "/ns/istio-system/sa/istio-ingressgateway"},
		{"details", details.Answer.Caller, domain + "/ns/bookshop/sa/page"},
		{"reviews", reviews.Answer.Caller, domain + "/ns/bookshop/sa/page"},
		{"ratings", ratings.Answer.Caller, domain + "/ns/bookshop/sa/reviews"},
	} {
		if seen.got != seen.want {
			return "", fmt.Errorf("%s identified the caller as %q, but the caller was %s", seen.by, seen.got, seen.want)
		}
	}
	if err := checkForgedIdentity(ctx, t, domain); err != nil {
		return "", err
	}
	return fmt.Sprintf("reviews identified its caller as %s, ratings as %s; a forged x-forwarded-client-cert header had no effect", reviews.Answer.Caller, ratings.Answer.Caller), nil
}

func checkForgedIdentity(ctx context.Context, t *Target, domain string) error {
	page, err := t.clientOf(ctx, "page-v1")
	if err != nil {
		return err
	}
	forged := domain + "/ns/bookshop/sa/king"
	r, err := page.expect(ctx, http.StatusOK, reviewsURL, headers{"X-Forwarded-Client-Cert": "URI=" + forged})
	if err != nil {
		return err
	}
	if r.Answer.Caller != domain+"/ns/bookshop/sa/page" {
		return fmt.Errorf("reviews accepted a forged x-forwarded-client-cert header: it identified the caller as %q", r.Answer.Caller)
	}
	return nil
}

// authorizationPolicy checks that page may call reviews, and that crawler may call details but not reviews.
func authorizationPolicy(ctx context.Context, t *Target) (string, error) {
	var evidence []string
	for _, try := range []struct {
		from, service, url string
		status             int
	}{
		{"page-v1", "reviews", reviewsURL, http.StatusOK},
		{"crawler-v1", "reviews", reviewsURL, http.StatusForbidden},
		{"crawler-v1", "details", "http://details:9080/details/1", http.StatusOK},
	} {
		c, err := t.clientOf(ctx, try.from)
		if err != nil {
			return "", err
		}
		r, err := c.expect(ctx, try.status, try.url, nil)
		if err != nil {
			return "", err
		}
		evidence = append(evidence, fmt.Sprintf("%s → %s %d", try.from, try.service, r.Status))
	}
	return strings.Join(evidence, ", "), nil
}
