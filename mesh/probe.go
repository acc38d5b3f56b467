package mesh

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/pilotfish-mesh/pilotfish/mesh/topology"
)

const (
	probeTimeout = 2 * time.Second
	maxAnswer    = 4 << 20
	// appProbeInterval is how long the result of a successful probe of an application is used. Probes are rare, because
	// each probe may write a line to the application's log.
	appProbeInterval = 2 * time.Second
)

// prober checks the readiness of an instance.
type prober struct {
	instance *topology.Instance
	dial     func(ctx context.Context, network, address string) (net.Conn, error)
	client   *http.Client
	// Makes the application reachable for its sidecar; nil if that is not necessary.
	exposeApp func(context.Context) error

	readyAt time.Time // time of the last successful probe of the application
}

func newProber(i *topology.Instance, at Attachment, agentDir string) *prober {
	transport := &http.Transport{DialContext: dialSockets(agentDir, at.Dial), MaxIdleConnsPerHost: 2, IdleConnTimeout: 5 * time.Second, DisableCompression: true}
	return &prober{instance: i, dial: at.Dial, exposeApp: at.ExposeApp, client: &http.Client{Transport: transport, Timeout: probeTimeout, CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse
	}}}
}

// readinessAnswer is the agent's response to /healthz/ready?format=json.
type readinessAnswer struct {
	Ready   bool `json:"ready"`
	Reasons []struct {
		Part   string `json:"part"`
		Ready  bool   `json:"ready"`
		Reason string `json:"reason"`
		Silent bool   `json:"silent"`
	} `json:"reasons"`
}

// sidecar returns the reasons for which the sidecar is not ready. It returns none if the sidecar is ready. silent
// reports whether all reasons are timeouts.
func (p *prober) sidecar(ctx context.Context) (reasons []string, silent bool) {
	var answer readinessAnswer
	status, err := p.getJSON(ctx, p.instance.StatusAddress().String(), "/healthz/ready?format=json", &answer)
	if err != nil {
		return []string{"the sidecar does not respond yet: " + err.Error()}, isTimeout(err)
	}
	if status == http.StatusOK {
		return nil, false
	}
	silent = true
	for _, r := range answer.Reasons {
		if !r.Ready {
			silent = silent && r.Silent
			reasons = append(reasons, fmt.Sprintf("sidecar: %s: %s", r.Part, r.Reason))
		}
	}
	if len(reasons) == 0 {
		return []string{fmt.Sprintf("the sidecar responds with status %d", status)}, false
	}
	return reasons, silent
}

// application returns the reason for which the application is not ready, or "". silent reports whether the reason is a
// timeout.
func (p *prober) application(ctx context.Context) (why string, silent bool) {
	w := p.instance.Workload
	port := w.Readiness.Port
	if port == 0 {
		port = w.FirstPort()
	}
	if port == 0 || time.Since(p.readyAt) < appProbeInterval {
		return "", false
	}
	if p.exposeApp != nil {
		if err := p.exposeApp(ctx); err != nil {
			return "the sidecar cannot connect to the application: " + err.Error(), isTimeout(err)
		}
	}
	address := net.JoinHostPort(p.instance.App.String(), strconv.Itoa(int(port)))
	if w.Readiness.Path != "" {
		why, silent = p.probeHTTP(ctx, address, w.Readiness.Path)
	} else if w.ProtocolOf(port) != "UDP" {
		why, silent = p.probeTCP(ctx, address)
	}
	if why == "" {
		p.readyAt = time.Now()
	} else {
		p.readyAt = time.Time{}
	}
	return why, silent
}

// reset discards the last result after a restart of the application.
func (p *prober) reset() { p.readyAt = time.Time{} }

func (p *prober) probeTCP(ctx context.Context, address string) (why string, silent bool) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	conn, err := p.dial(ctx, "tcp", address)
	if err != nil {
		return fmt.Sprintf("the application does not listen on %s yet (%s): %v", address, p.bindHint(), innermostError(err)), isTimeout(err)
	}
	_ = conn.Close()
	return "", false
}

func (p *prober) probeHTTP(ctx context.Context, address, path string) (why string, silent bool) {
	status, err := p.getJSON(ctx, address, path, nil)
	if err != nil {
		return fmt.Sprintf("the application does not respond at http://%s%s yet (%s): %v", address, path, p.bindHint(), err), isTimeout(err)
	}
	if status < 200 || status > 399 {
		return fmt.Sprintf("the application responds with status %d at http://%s%s", status, address, path), false
	}
	return "", false
}

// bindHint describes on which address the application must listen.
func (p *prober) bindHint() string {
	if p.instance.Captured {
		return "the application must listen on this port, at any address"
	}
	return "the application must listen on ${APP_ADDRESS}:${PORT}"
}

// getJSON sends a GET request and decodes the response, unless into is nil. Invalid JSON is not an error, because the
// status code is sufficient.
func (p *prober) getJSON(ctx context.Context, address, path string, into any) (status int, err error) {
	body, status, err := p.get(ctx, address, path)
	if err == nil && into != nil {
		_ = json.Unmarshal(body, into)
	}
	return status, err
}

func (p *prober) get(ctx context.Context, address, path string) (body []byte, status int, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+path, nil)
	if err != nil {
		return nil, 0, err
	}
	res, err := p.client.Do(req)
	if err != nil {
		return nil, 0, innermostError(err)
	}
	defer res.Body.Close()
	body, err = io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	return body, res.StatusCode, err
}

// innermostError returns the innermost wrapped error. The outer errors only repeat the caller's message.
func innermostError(err error) error {
	for {
		inner, ok := err.(interface{ Unwrap() error })
		if !ok || inner.Unwrap() == nil {
			return err
		}
		err = inner.Unwrap()
	}
}
