package kube

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"
)

const (
	// tokenLife is what is asked for: a node without its agent can start pods for so long.
	tokenLife = 24 * time.Hour
	// tokenTime bounds the question, and tokenPause is between two that were in vain.
	tokenTime, tokenPause = 5 * time.Second, 20 * time.Second
)

// LastingToken is a token of the service account that a pod runs as, which outlives the pod: the pod's own is refused as
// soon as the pod is gone. Its methods may be called concurrently.
type LastingToken struct {
	client *Client
	own    func() (string, error) // the pod's own
	now    func() time.Time
	logger *slog.Logger

	mu           sync.Mutex
	token        string
	renew, until time.Time
	next         time.Time // of the next question after one in vain
	told         string
}

// NewLastingToken asks as the client, whose token has to be that of a service account; nothing is asked yet. now may be nil.
func NewLastingToken(c *Client, now func() time.Time, logger *slog.Logger) *LastingToken {
	if now == nil {
		now = time.Now
	}
	return &LastingToken{client: c, own: c.bearer, now: now, logger: logger}
}

// Token gives the token, which is renewed when half of its life is over. Where the API server gives none, it is the pod's
// own.
func (l *LastingToken) Token() (string, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	if !now.Before(l.renew) && !now.Before(l.next) {
		l.ask(now)
	}
	if l.token != "" && now.Before(l.until) {
		return l.token, nil
	}
	return l.own()
}

func (l *LastingToken) ask(now time.Time) {
	ctx, cancel := context.WithTimeoutCause(context.Background(), tokenTime, fmt.Errorf("no answer within %v", tokenTime))
	defer cancel()
	token, until, err := l.client.newToken(ctx, tokenLife)
	if err == nil && !until.After(now) {
		err = fmt.Errorf("the API server gave a token that ended at %v", until)
	}
	if err != nil {
		l.next = now.Add(tokenPause)
		if l.told != err.Error() {
			l.told = err.Error()
			l.logger.Warn("the plugin has no token of its own, or cannot have the next: once this agent is gone it cannot ask for pods", "error", err,
				"remedy", "give the service account the right to create serviceaccounts/token of its own, as the manifest does")
		}
		return
	}
	l.token, l.until, l.renew, l.told = token, until, now.Add(until.Sub(now)/2), ""
}

// newToken asks for a token of the service account that the client is, bound to nothing.
func (c *Client) newToken(ctx context.Context, life time.Duration) (token string, until time.Time, err error) {
	own, err := c.bearer()
	if err != nil {
		return "", time.Time{}, err
	}
	namespace, name, err := accountOf(own)
	if err != nil {
		return "", time.Time{}, err
	}
	request := map[string]any{
		"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
		"spec": map[string]any{"expirationSeconds": int64(life / time.Second)},
	}
	var answer struct {
		Status struct {
			Token               string    `json:"token"`
			ExpirationTimestamp time.Time `json:"expirationTimestamp"`
		} `json:"status"`
	}
	path := "/api/v1/namespaces/" + url.PathEscape(namespace) + "/serviceaccounts/" + url.PathEscape(name) + "/token"
	if err := c.call(ctx, http.MethodPost, path, "application/json", request, &answer, maxFile); err != nil {
		return "", time.Time{}, fmt.Errorf("asking for a token of service account %s/%s: %w", namespace, name, err)
	}
	if answer.Status.Token == "" {
		return "", time.Time{}, fmt.Errorf("asking for a token of service account %s/%s: the answer has none", namespace, name)
	}
	return answer.Status.Token, answer.Status.ExpirationTimestamp, nil
}

// accountOf reads whose token it is. Whether it is good is the API server's affair.
func accountOf(token string) (namespace, name string, err error) {
	var claims struct {
		Subject string `json:"sub"`
	}
	parts := strings.Split(token, ".")
	if len(parts) == 3 {
		var text []byte
		if text, err = base64.RawURLEncoding.DecodeString(parts[1]); err == nil {
			err = json.Unmarshal(text, &claims)
		}
	}
	account, is := strings.CutPrefix(claims.Subject, "system:serviceaccount:")
	namespace, name, two := strings.Cut(account, ":")
	if err != nil || !is || !two || namespace == "" || name == "" || strings.Contains(name, ":") {
		return "", "", fmt.Errorf("the token of this agent is none of a service account, so that there is no other to be asked for")
	}
	return namespace, name, nil
}
