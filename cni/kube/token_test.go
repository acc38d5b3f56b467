package kube_test

import (
	"bytes"
	"encoding/base64"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pilotfish-mesh/pilotfish/cni/kube"
	"github.com/pilotfish-mesh/pilotfish/cni/kube/kubetest"
)

// lasting returns a function that returns the token, and the offset of the token's clock, which the test can change.
func lasting(t *testing.T, server *kubetest.Server) (token func() string, ahead *time.Duration, log *bytes.Buffer) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "token")
	writeToken(t, file, kubetest.Token+"\n")
	return lastingIn(t, server.Client(t), file)
}

func writeToken(t *testing.T, file, token string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
		t.Fatal(err)
	}
}

func lastingIn(t *testing.T, client *kube.Client, file string) (token func() string, ahead *time.Duration, log *bytes.Buffer) {
	t.Helper()
	ahead, log = new(time.Duration), &bytes.Buffer{}
	l := kube.NewLastingToken(client, file, kube.TokenLife, func() time.Time { return time.Now().Add(*ahead) }, slog.New(slog.NewTextHandler(log, nil)))
	l.WaitFor(time.Minute)
	t.Cleanup(l.Close)
	return func() string {
		t.Helper()
		token, err := l.Token()
		if err != nil {
			t.Fatal(err)
		}
		return token
	}, ahead, log
}

func TestTokenThatOutlivesThePodIsRenewedInTime(t *testing.T) {
	server := kubetest.New(t)
	token, ahead, _ := lasting(t, server)
	for range 2 {
		if got := token(); got != "lasting-1" || server.Requests("POST", kubetest.TokenPath) != 1 {
			t.Errorf("%s: it is asked for more than once", got)
		}
	}
	*ahead = 29 * time.Minute
	if got := token(); got != "lasting-1" {
		t.Errorf("token before half of its lifetime: %s", got)
	}
	*ahead = 31 * time.Minute
	if got := token(); got != "lasting-2" {
		t.Errorf("after half of its life: %s", got)
	}
	c := server.Config()
	c.Token = token()
	client, err := kube.New(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	if _, _, err := client.Pods(t.Context(), "node"); err != nil {
		t.Error(err)
	}
}

func TestPreviousTokenIsUsedWhileRenewalFails(t *testing.T) {
	server := kubetest.New(t)
	token, ahead, log := lasting(t, server)
	token()
	server.LimitTokenLife(0)
	*ahead = 40 * time.Minute
	for range 2 {
		if got := token(); got != "lasting-1" || server.Requests("POST", kubetest.TokenPath) != 2 {
			t.Errorf("%s: it is lost, or asked for without a pause", got)
		}
	}
	*ahead = 61 * time.Minute
	if token() != kubetest.Token || strings.Count(log.String(), "level=WARN") != 1 {
		t.Errorf("after the expiry, Token does not return the pod's token: %s", log)
	}
	*ahead = 62 * time.Minute
	server.LimitTokenLife(3 * time.Hour)
	if got := token(); got != "lasting-2" {
		t.Errorf("token after the API server has recovered: %s", got)
	}
}

func TestPodsOwnTokenIsUsedWithoutPermissionForAnother(t *testing.T) {
	server := kubetest.New(t)
	server.LimitTokenLife(0)
	token, _, log := lasting(t, server)
	if token() != kubetest.Token || !strings.Contains(log.String(), "403 Forbidden") || !strings.Contains(log.String(), "serviceaccounts/token") {
		t.Errorf("%s", log)
	}
	if strings.Contains(log.String(), "signature") {
		t.Error("the token is in the log")
	}
}

func TestTokenIsRenewedInTimeDespiteClockSkew(t *testing.T) {
	for name, wrong := range map[string]time.Duration{"a month behind": -30 * 24 * time.Hour, "a month ahead": 30 * 24 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			server := kubetest.New(t)
			token, ahead, log := lasting(t, server)
			*ahead = wrong
			if got := token(); got != "lasting-1" {
				t.Fatalf("%s: %s", got, log)
			}
			*ahead += 31 * time.Minute
			if got := token(); got != "lasting-2" {
				t.Errorf("after half of its life: %s", got)
			}
			*ahead = 0
			if got := token(); !strings.HasPrefix(got, "lasting-") {
				t.Errorf("token after the clock was corrected: %s", got)
			}
			*ahead = 31 * time.Minute
			if got := token(); got != "lasting-3" && got != "lasting-4" {
				t.Errorf("token half of its lifetime after the clock was corrected: %s", got)
			}
		})
	}
}

func TestFailedTokenRequestsBackOff(t *testing.T) {
	server := kubetest.New(t)
	server.LimitTokenLife(0)
	token, ahead, _ := lasting(t, server)
	for range 2 * 60 * 24 { // every 30 s, as in an agent
		token()
		*ahead += 30 * time.Second
	}
	if asked := server.Requests("POST", kubetest.TokenPath); asked < 100 || asked > 160 {
		t.Errorf("%d token requests in a day", asked)
	}
}

func TestTokenIsForTheAgentsServiceAccount(t *testing.T) {
	server := kubetest.New(t)
	file := filepath.Join(t.TempDir(), "token")
	own := "e30." + base64.RawURLEncoding.EncodeToString([]byte(`{"sub":"system:serviceaccount:pilotfish-system:pilotfish-cni","kubernetes.io":{"serviceaccount":{"uid":"1"}}}`)) + ".own"
	writeToken(t, file, own)
	token, ahead, _ := lastingIn(t, server.Client(t), file)
	if got := token(); got != "lasting-1" {
		t.Errorf("%s", got)
	}
	other := "e30." + base64.RawURLEncoding.EncodeToString([]byte(`{"sub":"system:serviceaccount:pilotfish-system:pilotfish-cni","kubernetes.io":{"serviceaccount":{"uid":"2"}}}`)) + ".own"
	writeToken(t, file, other)
	if got := token(); got != "lasting-2" {
		t.Errorf("token of a service account that was recreated: %s", got)
	}
	server.LimitTokenLife(0)
	*ahead = 25 * time.Hour
	if got := token(); got != other {
		t.Errorf("Token does not return the pod's own token: %s", got)
	}
}

// The agent must repair the installation without waiting for a token.
func TestHungAPIServerDoesNotDelayTheToken(t *testing.T) {
	server := kubetest.New(t)
	release := server.DelayResponses(kubetest.TokenPath)
	defer release()
	file := filepath.Join(t.TempDir(), "token")
	writeToken(t, file, kubetest.Token)
	l := kube.NewLastingToken(server.Client(t), file, kube.TokenLife, nil, slog.New(slog.DiscardHandler))
	defer l.Close()
	for range 2 {
		if got, err := l.Token(); err != nil || got != kubetest.Token {
			t.Fatalf("%q %v", got, err)
		}
	}
	release()
	select {
	case <-l.Renewed():
	case <-time.After(time.Minute):
		t.Fatal("Renewed did not receive a value after a late response")
	}
	if got, err := l.Token(); err != nil || got != "lasting-1" || server.Requests("POST", kubetest.TokenPath) != 1 {
		t.Errorf("%q %v", got, err)
	}
}

func TestCloseDoesNotWaitForAPendingTokenRequest(t *testing.T) {
	server := kubetest.New(t)
	release := server.DelayResponses(kubetest.TokenPath)
	defer release()
	file := filepath.Join(t.TempDir(), "token")
	writeToken(t, file, kubetest.Token)
	l := kube.NewLastingToken(server.Client(t), file, kube.TokenLife, nil, slog.New(slog.DiscardHandler))
	if _, err := l.Token(); err != nil {
		t.Fatal(err)
	}
	l.Close() // while the request is pending
}
