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
	// TokenLife is what is usually asked for: a node without its agent can start pods for so long. ShortestTokenLife is the
	// least that API servers give.
	TokenLife, ShortestTokenLife = 24 * time.Hour, 10 * time.Minute
	// tokenTime bounds the question. tokenPause is between two that were in vain, each time twice as long, up to longestPause.
	tokenTime, tokenPause, longestPause = 5 * time.Second, 20 * time.Second, 10 * time.Minute
	// tokenWait is how long somebody who wants the token waits for the next one. An API server that hangs must not keep a
	// node agent from putting the plugin back.
	tokenWait = time.Second
)

// LastingToken is a token of the service account that a pod runs as, which outlives the pod: the pod's own is refused as
// soon as the pod is gone. Its methods may be called concurrently, but none after Close.
type LastingToken struct {
	client  *Client
	file    string // the pod's own
	now     func() time.Time
	logger  *slog.Logger
	renewed chan struct{}
	wait    time.Duration
	asked   time.Duration   // the life of tokens that is asked for
	context context.Context // of questions, until Close
	cancel  context.CancelFunc

	mu     sync.Mutex
	asking chan struct{} // closed when the question is answered; nil while there is none
	token  string
	of     account
	given  time.Time
	life   time.Duration
	tried  time.Time // when it was asked in vain
	pause  time.Duration
	told   string
}

// NewLastingToken asks, as the client, for tokens of the service account whose own is in the file, which live as long as is
// said, or as the API server allows; nothing is asked yet. now may be nil.
func NewLastingToken(c *Client, file string, life time.Duration, now func() time.Time, logger *slog.Logger) *LastingToken {
	if now == nil {
		now = time.Now
	}
	l := &LastingToken{client: c, file: file, now: now, logger: logger, pause: tokenPause, renewed: make(chan struct{}, 1), wait: tokenWait, asked: life}
	l.context, l.cancel = context.WithCancel(context.Background())
	return l
}

// Renewed has something when Token gives another than before.
func (l *LastingToken) Renewed() <-chan struct{} { return l.renewed }

// Close ends what is being asked.
func (l *LastingToken) Close() {
	l.cancel()
	l.mu.Lock()
	asking := l.asking
	l.mu.Unlock()
	if asking != nil {
		<-asking
	}
}

// Token gives the token, which is renewed when half of its life is over, or when the account has been made anew. Where the
// API server gives none, or takes its time, it is that of before, and without one the pod's own.
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

// current is the token of now, and what to wait for where the next one is being asked for.
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
	// By the clock on the wall: the other one stands still while a machine sleeps.
	now := l.now().Round(0)
	of, err := accountOf(text)
	switch {
	case err != nil && l.due(now, of):
		l.failed(now, err)
	case err == nil && l.asking == nil && l.due(now, of):
		l.asking = make(chan struct{})
		go l.ask(now, of)
	}
	asking = l.asking
	if l.token != "" && l.of == of && now.Sub(l.given) < l.life {
		return l.token, asking, nil
	}
	return text, asking, nil
}

// due says whether it is time to ask. A clock that was put back says nothing of how long ago something was.
func (l *LastingToken) due(now time.Time, of account) bool {
	if since := now.Sub(l.tried); since >= 0 && since < l.pause {
		return false
	}
	age := now.Sub(l.given)
	return l.token == "" || l.of != of || age < 0 || age >= l.life/2
}

// ask asks once.
func (l *LastingToken) ask(now time.Time, of account) {
	ctx, cancel := context.WithTimeoutCause(l.context, tokenTime, fmt.Errorf("no answer within %v", tokenTime))
	defer cancel()
	token, life, err := l.client.newToken(ctx, of, l.asked, now)
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.asking)
	l.asking = nil
	switch {
	case err == nil:
		l.token, l.of, l.given, l.life, l.tried, l.pause, l.told = token, of, now, life, time.Time{}, tokenPause, ""
		select {
		case l.renewed <- struct{}{}:
		default:
		}
	case l.context.Err() == nil:
		l.failed(now, err)
	}
}

func (l *LastingToken) failed(now time.Time, err error) {
	if !l.tried.IsZero() {
		l.pause = min(2*l.pause, longestPause)
	}
	l.tried = now
	if l.told != err.Error() {
		l.told = err.Error()
		l.logger.Warn("the plugin has no token of its own, or cannot have the next: once this agent is gone it cannot ask for pods", "error", err,
			"remedy", "give the service account the right to create serviceaccounts/token of its own, as the manifest does")
	}
}

// newToken asks for a token of a service account, bound to nothing. How long it lives is told as a duration too, which is
// right whatever the clock of this node says.
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
		return "", 0, fmt.Errorf("asking for a token of service account %s/%s: %w", of.namespace, of.name, err)
	}
	life = answer.Status.ExpirationTimestamp.Sub(now)
	if seconds := answer.Spec.ExpirationSeconds; seconds > 0 {
		life = time.Duration(min(seconds, int64(most/time.Second))) * time.Second
	}
	switch {
	case answer.Status.Token == "":
		return "", 0, fmt.Errorf("asking for a token of service account %s/%s: the answer has none", of.namespace, of.name)
	case life <= 0:
		return "", 0, fmt.Errorf("asking for a token of service account %s/%s: it ended at %v", of.namespace, of.name, answer.Status.ExpirationTimestamp)
	}
	return answer.Status.Token, min(life, most), nil
}

// account is a service account. One that was made anew has another UID, and tokens of the one before are worth nothing.
type account struct{ namespace, name, uid string }

// accountOf reads whose token it is. Whether it is good is the API server's affair.
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
		return account{}, errors.New("the token of this agent is none of a service account, so that there is no other to be asked for")
	}
	return account{namespace, name, claims.Kubernetes.ServiceAccount.UID}, nil
}
