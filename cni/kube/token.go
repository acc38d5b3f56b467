package kube

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"
)

const (
	// TokenLife is the default lifetime. A node without its agent can start pods for this time. MinTokenLife is the
	// minimum that API servers accept.
	TokenLife, MinTokenLife = 24 * time.Hour, 10 * time.Minute
	// tokenTime limits one token request. tokenPause is the delay after a failure; it doubles up to maxPause.
	tokenTime, tokenPause, maxPause = 5 * time.Second, 20 * time.Second, 10 * time.Minute
	// tokenWait is how long Token waits for a pending request. An API server that hangs must not prevent the node agent
	// from restoring the plugin.
	tokenWait = time.Second
)

// LastingToken is a token of the pod's service account that stays valid after the pod's deletion. The API server
// refuses the pod's own token as soon as the pod is deleted. Its methods may be called concurrently, but not after
// Close.
type LastingToken struct {
	client        *Client
	file          string // the pod's token
	now           func() time.Time
	logger        *slog.Logger
	renewed       chan struct{}
	wait          time.Duration
	requestedLife time.Duration   // requested lifetime of tokens
	context       context.Context // of requests; canceled by Close
	cancel        context.CancelFunc

	mu         sync.Mutex
	pending    chan struct{} // closed when the pending request ends; nil without one
	token      string
	of         account
	given      time.Time
	life       time.Duration
	tried      time.Time // time of the last failed request
	pause      time.Duration
	lastLogged string
}

// NewLastingToken returns a LastingToken that requests tokens through the client, for the service account of the token
// in file. life is the requested lifetime; the API server may shorten it. It sends no request. now may be nil.
func NewLastingToken(c *Client, file string, life time.Duration, now func() time.Time, logger *slog.Logger) *LastingToken {
	if now == nil {
		now = time.Now
	}
	l := &LastingToken{client: c, file: file, now: now, logger: logger, pause: tokenPause, renewed: make(chan struct{}, 1), wait: tokenWait, requestedLife: life}
	l.context, l.cancel = context.WithCancel(context.Background())
	return l
}

// Renewed returns a channel that receives a value when Token returns a new token.
func (l *LastingToken) Renewed() <-chan struct{} { return l.renewed }

// Close cancels a pending request and waits for its end.
func (l *LastingToken) Close() {
	l.cancel()
	l.mu.Lock()
	asking := l.pending
	l.mu.Unlock()
	if asking != nil {
		<-asking
	}
}

// Token returns the token. It requests a new one after half of the lifetime, or if the account was recreated. On
// failure or delay it returns the previous token, or without one the pod's own.
func (l *LastingToken) Token() (string, error) {
	token, asking, err := l.current()
	if err != nil || asking == nil {
		return token, err
	}
	select {
	case <-asking:
		token, _, err = l.current()
	case <-time.After(l.wait):
	}
	return token, err
}

// current returns the current token, and the channel of a pending request or nil.
func (l *LastingToken) current() (token string, asking <-chan struct{}, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	own, err := readFile(l.file)
	if err != nil {
		return "", nil, err
	}
	text := strings.TrimSpace(string(own))
	if text == "" {
		return "", nil, fmt.Errorf("%s is empty", l.file)
	}
	// Use the wall clock, since the monotonic clock stops while a machine is suspended.
	now := l.now().Round(0)
	of, err := accountOf(text)
	switch {
	case err != nil && l.due(now, of):
		l.recordFailure(now, err)
	case err == nil && l.pending == nil && l.due(now, of):
		l.pending = make(chan struct{})
		go l.fetch(now, of)
	}
	asking = l.pending
	if l.token != "" && l.of == of && now.Sub(l.given) < l.life {
		return l.token, asking, nil
	}
	return text, asking, nil
}

// due reports whether a token must be requested. If the clock was set back, elapsed times are unknown.
func (l *LastingToken) due(now time.Time, of account) bool {
	if since := now.Sub(l.tried); since >= 0 && since < l.pause {
		return false
	}
	age := now.Sub(l.given)
	return l.token == "" || l.of != of || age < 0 || age >= l.life/2
}

// fetch sends one token request.
func (l *LastingToken) fetch(now time.Time, of account) {
	ctx, cancel := context.WithTimeoutCause(l.context, tokenTime, fmt.Errorf("no answer within %v", tokenTime))
	defer cancel()
	token, life, err := l.client.newToken(ctx, of, l.requestedLife, now)
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.pending)
	l.pending = nil
	switch {
	case err == nil:
		l.token, l.of, l.given, l.life, l.tried, l.pause, l.lastLogged = token, of, now, life, time.Time{}, tokenPause, ""
		select {
		case l.renewed <- struct{}{}:
		default:
		}
	case l.context.Err() == nil:
		l.recordFailure(now, err)
	}
}

func (l *LastingToken) recordFailure(now time.Time, err error) {
	if !l.tried.IsZero() {
		l.pause = min(2*l.pause, maxPause)
	}
	l.tried = now
	if l.lastLogged != err.Error() {
		l.lastLogged = err.Error()
		l.logger.Warn("no separate token could be requested for the plugin: after this agent is deleted, the plugin cannot query pods", "error", err,
			"remedy", "grant the service account the permission to create serviceaccounts/token for itself, as the manifest does")
	}
}

// newToken requests a token of a service account, not bound to an object. It also returns the lifetime, which is
// correct even if the node's clock is wrong.
func (c *Client) newToken(ctx context.Context, of account, most time.Duration, now time.Time) (token string, life time.Duration, err error) {
	request := map[string]any{
		"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
		"spec": map[string]any{"expirationSeconds": int64(most / time.Second)},
	}
	var answer struct {
		Spec struct {
			ExpirationSeconds int64 `json:"expirationSeconds"`
		} `json:"spec"`
		Status struct {
			Token               string    `json:"token"`
			ExpirationTimestamp time.Time `json:"expirationTimestamp"`
		} `json:"status"`
	}
	path := "/api/v1/namespaces/" + url.PathEscape(of.namespace) + "/serviceaccounts/" + url.PathEscape(of.name) + "/token"
	if err := c.call(ctx, http.MethodPost, path, "application/json", request, &answer, maxFile); err != nil {
		return "", 0, fmt.Errorf("requesting a token for service account %s/%s: %w", of.namespace, of.name, err)
	}
	life = answer.Status.ExpirationTimestamp.Sub(now)
	if seconds := answer.Spec.ExpirationSeconds; seconds > 0 {
		life = time.Duration(min(seconds, int64(most/time.Second))) * time.Second
	}
	switch {
	case answer.Status.Token == "":
		return "", 0, fmt.Errorf("requesting a token for service account %s/%s: the response contains no token", of.namespace, of.name)
	case life <= 0:
		return "", 0, fmt.Errorf("requesting a token for service account %s/%s: the token expired at %v", of.namespace, of.name, answer.Status.ExpirationTimestamp)
	}
	return answer.Status.Token, min(life, most), nil
}

// account is a service account. A recreated account has another UID, and its earlier tokens are invalid.
type account struct{ namespace, name, uid string }

// accountOf returns the account of a token. It does not verify the signature.
func accountOf(token string) (account, error) {
	var claims struct {
		Subject    string `json:"sub"`
		Kubernetes struct {
			ServiceAccount struct {
				UID string `json:"uid"`
			} `json:"serviceaccount"`
		} `json:"kubernetes.io"`
	}
	var err error
	if parts := strings.Split(token, "."); len(parts) == 3 {
		var text []byte
		if text, err = base64.RawURLEncoding.DecodeString(parts[1]); err == nil {
			err = json.Unmarshal(text, &claims)
		}
	}
	subject, is := strings.CutPrefix(claims.Subject, "system:serviceaccount:")
	namespace, name, two := strings.Cut(subject, ":")
	if err != nil || !is || !two || namespace == "" || name == "" || strings.Contains(name, ":") {
		return account{}, errors.New("this agent's token is not a service account token, so no other token can be requested")
	}
	return account{namespace, name, claims.Kubernetes.ServiceAccount.UID}, nil
}
