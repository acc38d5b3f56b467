package envoy

import (
	"context"
	"fmt"
	"net/http"
	"strings"
)

// LogLevels returns the log levels of Envoy's components by name.
func (a *Admin) LogLevels(ctx context.Context) (map[string]string, error) {
	body, err := a.do(ctx, http.MethodPost, "/logging", nil, maxResponse)
	if err != nil {
		return nil, err
	}
	levels := map[string]string{}
	for line := range strings.Lines(string(body)) {
		// The heading "active loggers:" contains no level, so ok is false for it.
		name, level, ok := strings.Cut(strings.TrimSpace(line), ": ")
		if ok {
			levels[name] = level
		}
	}
	if len(levels) == 0 {
		return nil, fmt.Errorf("the response of Envoy's admin interface (%s) to /logging lists no levels: %q", a.addr, firstLine(string(body)))
	}
	return levels, nil
}

// ReopenLogs makes Envoy reopen its access log files.
func (a *Admin) ReopenLogs(ctx context.Context) error {
	_, err := a.do(ctx, http.MethodPost, "/reopen_logs", nil, maxResponse)
	return err
}
