package uds

import (
	"log/slog"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

func TestGuardRefusesRequestsWithoutTheSecret(t *testing.T) {
	secret := NewSecret()
	envoy, application := Peer{PID: 1}, Peer{PID: 2}
	for name, c := range map[string]struct {
		peer   Peer
		values []string
		want   codes.Code
	}{
		"Envoy with the secret":              {envoy, []string{secret}, codes.OK},
		"Envoy without a secret":             {envoy, nil, codes.PermissionDenied},
		"Envoy with an empty secret":         {envoy, []string{""}, codes.PermissionDenied},
		"Envoy with another secret":          {envoy, []string{NewSecret()}, codes.PermissionDenied},
		"Envoy with a part of it":            {envoy, []string{secret[:10]}, codes.PermissionDenied},
		"Envoy with two secrets":             {envoy, []string{"guess", secret}, codes.PermissionDenied},
		"an application without a secret":    {application, nil, codes.OK},
		"an application with another secret": {application, []string{"guess"}, codes.PermissionDenied},
	} {
		t.Run(name, func(t *testing.T) {
			var log testenv.Buffer
			g := &Guard{Secret: secret, IsExempt: func(p Peer) bool { return p == application }, Logger: slog.New(slog.NewTextHandler(&log, nil))}
			err := g.Check(c.peer, c.values)
			if status.Code(err) != c.want {
				t.Errorf("Check: %v, want %s", err, c.want)
			}
			if logged := strings.Contains(log.String(), "rejected"); logged != (c.want != codes.OK) {
				t.Errorf("the log: %s", log.String())
			}
			if strings.Contains(log.String(), secret) || err != nil && strings.Contains(err.Error(), secret) {
				t.Error("the secret is in the log or the error")
			}
		})
	}
}

func TestGuardLogsManyRefusalsOnce(t *testing.T) {
	var log testenv.Buffer
	g := &Guard{Secret: NewSecret(), IsExempt: func(Peer) bool { return false }, Logger: slog.New(slog.NewTextHandler(&log, nil))}
	for range 1000 {
		_ = g.Check(Peer{}, nil)
	}
	if n := strings.Count(log.String(), "rejected"); n != 1 {
		t.Errorf("%d lines for 1000 refusals:\n%s", n, log.String())
	}
}

func TestSecretsHave32RandomBytes(t *testing.T) {
	a, b := NewSecret(), NewSecret()
	if len(a) != 64 || a == b || strings.Trim(a, "0123456789abcdef") != "" {
		t.Errorf("%s, %s", a, b)
	}
}

func TestNoGuardAcceptsEveryRequest(t *testing.T) {
	if err := (*Guard)(nil).Check(Peer{}, []string{"any"}); err != nil {
		t.Error(err)
	}
}
