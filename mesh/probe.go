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
)

const (
	probeTimeout = 2 * time.Second
	maxAnswer    = 4 << 20
	// appProbeInterval is how long an application's answer is good for once it is ready: each question is a line in
	// its log.
	appProbeInterval = 2 * time.Second
)

// prober asks an instance how it is.
type prober struct {
	instance *Instance
	dial     func(ctx context.Context, network, address string) (net.Conn, error)
	client   *http.Client
	find     func(context.Context) error // where the application listens; nil: where it is told

	answered time.Time // when the application last said that it was ready
}

func newProber(i *Instance, at Attachment) *prober {
	transport := &http.Transport{DialContext: at.Dial, MaxIdleConnsPerHost: 2, IdleConnTimeout: 5 * time.Second, DisableCompression: true}
	return &prober{instance: i, dial: at.Dial, find: at.FindApp, client: &http.Client{Transport: transport, Timeout: probeTimeout, CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse
	}}}
}

// readinessAnswer is what the agent says at /healthz/ready?format=json.
type readinessAnswer struct {
	Ready   bool `json:"ready"`
	Reasons []struct {
		Part   string `json:"part"`
		Ready  bool   `json:"ready"`
		Reason string `json:"reason"`
		Silent bool   `json:"silent"`
	} `json:"reasons"`
}

// sidecar gives the reasons why the sidecar is not ready; none when it is. silent says that they are no more than missing
// answers.
func (p *prober) sidecar(ctx context.Context) (reasons []string, silent bool) {
	var answer readinessAnswer
	status, err := p.getJSON(ctx, p.instance.StatusAddress().String(), "/healthz/ready?format=json", &answer)
	if err != nil {
		return []string{"sidecar does not answer yet: " + err.Error()}, unanswered(err)
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
		return []string{fmt.Sprintf("sidecar answers %d", status)}, false
	}
	return reasons, silent
}

// application says why the application is not ready, or nothing when it is, and whether that is no more than a missing
// answer.
func (p *prober) application(ctx context.Context) (why string, silent bool) {
	w := p.instance.workload
	port := w.Readiness.Port
	if port == 0 {
		port = w.FirstPort()
	}
	if port == 0 || time.Since(p.answered) < appProbeInterval {
		return "", false
	}
	if p.find != nil {
		if err := p.find(ctx); err != nil {
			return "application cannot be reached: " + err.Error(), unanswered(err)
		}
	}
	address := net.JoinHostPort(p.instance.App.String(), strconv.Itoa(int(port)))
	if w.Readiness.Path != "" {
		why, silent = p.probeHTTP(ctx, address, w.Readiness.Path)
	} else if w.protocolOf(port) != "UDP" {
		why, silent = p.probeTCP(ctx, address)
	}
	if why == "" {
		p.answered = time.Now()
	} else {
		p.answered = time.Time{}
	}
	return why, silent
}

// forget has the application asked anew, after it was started again.
func (p *prober) forget() { p.answered = time.Time{} }

func (w *Workload) protocolOf(port uint16) string {
	for _, p := range w.Ports {
		if p.Port == port {
			return p.Protocol
		}
	}
	return ""
}

func (p *prober) probeTCP(ctx context.Context, address string) (why string, silent bool) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	conn, err := p.dial(ctx, "tcp", address)
	if err != nil {
		return fmt.Sprintf("application does not listen on %s yet (%s): %v", address, p.bound(), cause(err)), unanswered(err)
	}
	_ = conn.Close()
	return "", false
}

func (p *prober) probeHTTP(ctx context.Context, address, path string) (why string, silent bool) {
	status, err := p.getJSON(ctx, address, path, nil)
	if err != nil {
		return fmt.Sprintf("application does not answer at http://%s%s yet (%s): %v", address, path, p.bound(), err), unanswered(err)
	}
	if status < 200 || status > 399 {
		return fmt.Sprintf("application answers %d at http://%s%s", status, address, path), false
	}
	return "", false
}

// bound says where the application has to be for its sidecar.
func (p *prober) bound() string {
	if p.instance.captured {
		return "it has to listen on this port, at any address"
	}
	return "it has to bind ${APP_ADDRESS}:${PORT}"
}

// getJSON asks and decodes the answer, unless into is nil. An answer of another form is no error: the status counts.
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
		return nil, 0, cause(err)
	}
	defer res.Body.Close()
	body, err = io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	return body, res.StatusCode, err
}

// cause is the innermost error: what is around it repeats what the message says already.
func cause(err error) error {
	for {
		inner, ok := err.(interface{ Unwrap() error })
		if !ok || inner.Unwrap() == nil {
			return err
		}
		err = inner.Unwrap()
	}
}
