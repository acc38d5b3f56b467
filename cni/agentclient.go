package cni

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"time"

	"github.com/pilotfish-mesh/pilotfish/cni/agentapi"
)

// askAgent bounds one question to the node agent, whose answer lies ready, tellAgent all that it is told at the end.
const (
	askAgent  = 2 * time.Second
	tellAgent = 300 * time.Millisecond
)

// agentClient speaks with the node agent over its unix socket.
type agentClient struct {
	socket string
	http   *http.Client
}

func newAgentClient(runDir string) *agentClient {
	socket := filepath.Join(runDir, agentapi.SocketName)
	var d net.Dialer
	return &agentClient{socket: socket, http: &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return d.DialContext(ctx, "unix", socket) },
	}}}
}

// refusedError is an answer of the agent that is no success.
type refusedError struct {
	code int
	text string
}

func (e *refusedError) Error() string { return "the node agent says: " + e.text }

func (a *agentClient) pod(ctx context.Context, args *podArgs) (*agentapi.Pod, error) {
	query := url.Values{"namespace": {args.Namespace}, "name": {args.Name}, "uid": {args.UID}}
	body, err := a.call(ctx, http.MethodGet, agentapi.PodPath+"?"+query.Encode(), nil)
	if err != nil {
		return nil, err
	}
	p := &agentapi.Pod{}
	if err := json.Unmarshal(body, p); err != nil {
		return nil, fmt.Errorf("the node agent's answer about %s is no pod: %w", args, err)
	}
	return p, nil
}

func (a *agentClient) status(ctx context.Context) error {
	_, err := a.call(ctx, http.MethodGet, agentapi.StatusPath, nil)
	return err
}

// tell hands the agent what was logged and how the command ended. It is not worth a pod's start: whatever fails is left.
func (a *agentClient) tell(ctx context.Context, entries []agentapi.LogEntry, result agentapi.Result) {
	ctx, cancel := context.WithTimeout(ctx, tellAgent)
	defer cancel()
	if len(entries) > 0 {
		if _, err := a.call(ctx, http.MethodPost, agentapi.LogPath, entries); err != nil {
			return
		}
	}
	_, _ = a.call(ctx, http.MethodPost, agentapi.ResultPath, result)
}

func (a *agentClient) call(ctx context.Context, method, path string, message any) ([]byte, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, askAgent, fmt.Errorf("no answer within %v", askAgent))
	defer cancel()
	var body io.Reader
	if message != nil {
		text, err := json.Marshal(message)
		if err != nil {
			return nil, fmt.Errorf("a message to the node agent: %w", err)
		}
		body = bytes.NewReader(text)
	}
	request, err := http.NewRequestWithContext(ctx, method, "http://agent"+path, body)
	if err != nil {
		return nil, fmt.Errorf("a request to the node agent: %w", err)
	}
	response, err := a.http.Do(request)
	if err != nil {
		return nil, fmt.Errorf("the node agent does not answer at %s (does its pod run on this node?): %w", a.socket, err)
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(response.Body, agentapi.MaxBody+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("reading the node agent's answer: %w", err)
	case len(text) > agentapi.MaxBody:
		return nil, errors.New("the node agent's answer is too large")
	case response.StatusCode >= 300:
		return nil, refusal(response.Status, response.StatusCode, text)
	}
	return text, nil
}

func refusal(status string, code int, body []byte) error {
	told := agentapi.Refusal{}
	if json.Unmarshal(body, &told) != nil || told.Error == "" {
		told.Error = status
	}
	return &refusedError{code, told.Error}
}
