package cni

import (
	"bufio"
	"bytes"
	"cmp"
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

// queryTimeout is the timeout of one query to the node agent. reportTimeout is the timeout of the report that the plugin
// sends at the end of a command.
const (
	queryTimeout  = 2 * time.Second
	reportTimeout = 300 * time.Millisecond
)

// maxHeader limits the size of a response header, in bytes.
const maxHeader = 64 << 10

// agentClient is an HTTP client for the node agent's unix socket. It uses one connection and no goroutines, because the
// goroutines of http.Client would use a fifth of the CPU time of an ADD.
type agentClient struct {
	socket string
	conn   net.Conn // nil if not connected
	limit  *io.LimitedReader
	from   *bufio.Reader
}

func newAgentClient(runDir string) *agentClient {
	return &agentClient{socket: filepath.Join(runDir, agentapi.SocketName)}
}

// refusedError is a response of the node agent with an error status.
type refusedError struct {
	code int
	text string
}

func (e *refusedError) Error() string { return "the node agent responded: " + e.text }

func (a *agentClient) pod(ctx context.Context, args *podArgs) (*agentapi.Pod, error) {
	query := url.Values{"namespace": {args.Namespace}, "name": {args.Name}, "uid": {args.UID}}
	body, err := a.get(ctx, agentapi.PodPath+"?"+query.Encode())
	if err != nil {
		return nil, err
	}
	p := &agentapi.Pod{}
	if err := json.Unmarshal(body, p); err != nil {
		return nil, fmt.Errorf("decoding the node agent's response for %s: %w", args, err)
	}
	return p, nil
}

func (a *agentClient) status(ctx context.Context) error {
	_, err := a.get(ctx, agentapi.StatusPath)
	return err
}

func (a *agentClient) get(ctx context.Context, path string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	query, err := request(http.MethodGet, path, nil)
	if err != nil {
		return nil, err
	}
	return a.exchange(ctx, query)
}

// report sends the log lines and the result of the command to the node agent. It ignores errors, because a failed
// report must not prevent the pod from starting.
func (a *agentClient) report(ctx context.Context, entries []agentapi.LogEntry, result agentapi.Result) {
	ctx, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	var requests []*http.Request
	if len(entries) > 0 {
		if log, err := request(http.MethodPost, agentapi.LogPath, entries); err == nil {
			requests = append(requests, log)
		}
	}
	if end, err := request(http.MethodPost, agentapi.ResultPath, result); err == nil {
		requests = append(requests, end)
	}
	_, _ = a.exchange(ctx, requests...)
	a.close()
}

func request(method, path string, message any) (*http.Request, error) {
	var body io.Reader
	if message != nil {
		text, err := json.Marshal(message)
		if err != nil {
			return nil, fmt.Errorf("encoding a message to the node agent: %w", err)
		}
		body = bytes.NewReader(text)
	}
	r, err := http.NewRequest(method, "http://agent"+path, body)
	if err != nil {
		return nil, fmt.Errorf("creating a request to the node agent: %w", err)
	}
	return r, nil
}

// exchange sends all requests and then reads their responses. It returns the body of the last response. If responses
// have an error status, err is a *refusedError for the first of them.
func (a *agentClient) exchange(ctx context.Context, requests ...*http.Request) (body []byte, err error) {
	var all bytes.Buffer
	for _, r := range requests {
		if err := r.Write(&all); err != nil {
			return nil, fmt.Errorf("encoding a request to the node agent: %w", err)
		}
	}
	if err := a.connect(ctx); err != nil {
		return nil, a.noResponseError(err)
	}
	if _, err := a.conn.Write(all.Bytes()); err != nil {
		a.close()
		return nil, a.noResponseError(err)
	}
	var refused error
	for _, r := range requests {
		var refusal *refusedError
		if body, err = a.read(r); err != nil && !errors.As(err, &refusal) {
			a.close()
			return nil, err
		}
		refused = cmp.Or(refused, err)
	}
	return body, refused
}

func (a *agentClient) connect(ctx context.Context) (err error) {
	if a.conn == nil {
		var d net.Dialer
		if a.conn, err = d.DialContext(ctx, "unix", a.socket); err != nil {
			a.conn = nil
			return err
		}
		a.limit = &io.LimitedReader{R: a.conn}
		a.from = bufio.NewReader(a.limit)
	}
	deadline, _ := ctx.Deadline() // every caller sets a deadline
	return a.conn.SetDeadline(deadline)
}

func (a *agentClient) noResponseError(err error) error {
	return fmt.Errorf("the node agent does not respond at %s (does its pod run on this node?): %w", a.socket, err)
}

// read reads one response and returns its body. For an error status, it returns a *refusedError, after which the
// connection remains usable.
func (a *agentClient) read(to *http.Request) ([]byte, error) {
	a.limit.N = agentapi.MaxBody + maxHeader
	response, err := http.ReadResponse(a.from, to)
	if err != nil {
		return nil, a.noResponseError(err)
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(response.Body, agentapi.MaxBody+1))
	switch {
	case len(text) > agentapi.MaxBody:
		return nil, errors.New("the node agent's response is too large")
	case err != nil:
		return nil, fmt.Errorf("reading the node agent's response: %w", err)
	case response.StatusCode < 200 || response.StatusCode >= 300:
		return nil, refusal(response.Status, response.StatusCode, text)
	}
	return text, nil
}

func (a *agentClient) close() {
	if a.conn != nil {
		_ = a.conn.Close()
		a.conn = nil
	}
}

func refusal(status string, code int, body []byte) error {
	refused := agentapi.Refusal{}
	if json.Unmarshal(body, &refused) != nil || refused.Error == "" {
		refused.Error = status
	}
	return &refusedError{code, refused.Error}
}
