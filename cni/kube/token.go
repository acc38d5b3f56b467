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
	// TokenLife is the default lifetime of the plugin's token. It is also how long pods can start on a node whose agent
	// does not run. MinTokenLife is the minimum lifetime that API servers accept.
	TokenLife, MinTokenLife = 24 * time.Hour, 10 * time.Minute
	// tokenTime is the timeout of one token request. tokenPause is the delay after a failed request; it doubles after
	// each further failure, up to maxPause.
	tokenTime, tokenPause, maxPause = 5 * time.Second, 20 * time.Second, 10 * time.Minute
	// tokenWait is how long Token waits for a pending request. It is short, so that an API server that hangs does not
	// prevent the node agent from repairing the plugin's installation.
	tokenWait = time.Second
)

// LastingToken requests and renews a token of the pod's service account that is still valid after the pod was deleted.
// The token that is mounted in the pod is not: the API server rejects it as soon as the pod is deleted. The methods may
// be called concurrently, but not after Close.
type LastingToken struct {
	client        *Client
	file          string // path of the token that is mounted in the pod
	now           func() time.Time
	logger        *slog.Logger
	renewed       chan struct{}
	wait          time.Duration
	requestedLife time.Duration
	context       context.Context // for requests; canceled by Close
	cancel        context.CancelFunc

	mu         sync.Mutex
	pending    chan struct{} // closed when the pending request ends; nil if no request is pending
	token      string        // "" if none has been received
	of         account       // the token's service account
	given      time.Time     // when the token was requested
	life       time.Duration // the token's lifetime
	tried      time.Time     // time of the last failed request; zero after a success
	pause      time.Duration // delay after the last failed request
	lastLogged string        // last error that was logged
}

// NewLastingToken returns a LastingToken for the service account of the token in file. life is the requested lifetime;
// the API server may shorten it. now may be nil for time.Now. NewLastingToken does not send a request.
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

// Close cancels a pending request and waits until it has ended.
func (l *LastingToken) Close() {
	l.cancel()
	l.mu.Lock()
	pending := l.pending
	l.mu.Unlock()
	if pending != nil {
		<-pending
	}
}

// Token returns the current token. It requests a new token after half of the lifetime, or if the service account was
// created again. If the request fails or takes longer than tokenWait, Token returns the previous token. If that is not
// valid, it returns the token that is mounted in the pod.
func (l *LastingToken) Token() (string, error) {
	token, pending, err := l.current()
	if err != nil || pending == nil {
		return token, err
	}
	select {
	case <-pending:
		token, _, err = l.current()
	case <-time.After(l.wait):
	}
	return token, err
}

// current returns the current token. If a new token is due, it starts a request. pending is closed when the pending
// request ends; it is nil if there is none.
func (l *LastingToken) current() (token string, pending <-chan struct{}, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	own, err := readFile(l.file)
	if err != nil {
		return "", nil, err
	}
	text := strings.TrimSpace(string(own))
	if text == "" {
		return "", nil, fmt.Errorf("the token file %s is empty", l.file)
	}
	// Use the wall clock, because the monotonic clock does not advance while the machine is suspended.
	now := l.now().Round(0)
	of, err := accountOf(text)
	switch {
	case err != nil && l.due(now, of):
		l.recordFailure(now, err)
	case err == nil && l.pending == nil && l.due(now, of):
		l.pending = make(chan struct{})
		go l.fetch(now, of)
	}
	pending = l.pending
	if l.token != "" && l.of == of && now.Sub(l.given) < l.life {
		return l.token, pending, nil
	}
	return text, pending, nil
}

// due reports whether to request a token now. It returns false during the delay after a failure. If the clock was set
// back, the token's age is unknown, and it returns true.
func (l *LastingToken) due(now time.Time, of account) bool {
	if since := now.Sub(l.tried); since >= 0 && since < l.pause {
		return false
	}
	age := now.Sub(l.given)
	return l.token == "" || l.of != of || age < 0 || age >= l.life/2
}

// fetch sends one token request and stores the result.
func (l *LastingToken) fetch(now time.Time, of account) {
	ctx, cancel := context.WithTimeoutCause(l.context, tokenTime, fmt.Errorf("the API server did not respond within %v", tokenTime))
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
		l.logger.Warn("cannot request a separate token for the plugin; while this agent's pod is deleted, the plugin cannot query the API server", "error", err,
			"remedy", "grant the service account the permission to create serviceaccounts/token for itself, as the manifest does")
	}
}

// newToken requests a token for a service account. The token is not bound to a pod. newToken also returns the token's
// lifetime, which it reads from the response, so that it is correct even if the node's clock is wrong.
func (c *Client) newToken(ctx context.Context, of account, maxLife time.Duration, now time.Time) (token string, life time.Duration, err error) {
	request := map[string]any{
		"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
		"spec": map[string]any{"expirationSeconds": int64(maxLife / time.Second)},
	}
	var response struct {
		Spec struct {
			ExpirationSeconds int64 `json:"expirationSeconds"`
		} `json:"spec"`
		Status struct {
			Token               string    `json:"token"`
			ExpirationTimestamp time.Time `json:"expirationTimestamp"`
		} `json:"status"`
	}
	path := "/api/v1/namespaces/" + url.PathEscape(of.namespace) + "/serviceaccounts/" + url.PathEscape(of.name) + "/token"
	if err := c.call(ctx, http.MethodPost, path, "application/json", request, &response, maxFile); err != nil {
		return "", 0, fmt.Errorf("requesting a token for service account %s/%s: %w", of.namespace, of.name, err)
	}
	life = response.Status.ExpirationTimestamp.Sub(now)
	if seconds := response.Spec.ExpirationSeconds; seconds > 0 {
		life = time.Duration(min(seconds, int64(maxLife/time.Second))) * time.Second
	}
	switch {
	case response.Status.Token == "":
		return "", 0, fmt.Errorf("requesting a token for service account %s/%s: the response contains no token", of.namespace, of.name)
	case life <= 0:
		return "", 0, fmt.Errorf("requesting a token for service account %s/%s: the token expired at %v", of.namespace, of.name, response.Status.ExpirationTimestamp)
	}
	return response.Status.Token, min(life, maxLife), nil
}

// account identifies a service account. A service account that is deleted and created again has another UID, and tokens
// with the old UID are invalid.
type account struct{ namespace, name, uid string }

// accountOf returns the service account in a token's claims. It does not verify the token's signature.
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
		return account{}, errors.New("the agent's token is not a service account token, so a separate token cannot be requested")
	}
	return account{namespace, name, claims.Kubernetes.ServiceAccount.UID}, nil
}
