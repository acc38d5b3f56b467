package envoy

import (
	"context"
	"fmt"
	"net/http"
	"strings"
)

// LogLevels gives the level of each of Envoy's components by its name.
func (a *Admin) LogLevels(ctx context.Context) (map[string]string, error) {
	body, err := a.do(ctx, http.MethodPost, "/logging", nil, mostAnswer)
	if err != nil {
		return nil, err
	}
	levels := map[string]string{}
	for line := range strings.Lines(string(body)) {
		// "active loggers:" is a heading; each line below it is indented.
		name, level, ok := strings.Cut(strings.TrimSpace(line), ": ")
		if ok {
			levels[name] = level
		}
	}
	if len(levels) == 0 {
		return nil, fmt.Errorf("the answer of Envoy's admin (%s) to /logging lists no levels: %q", a.addr, firstLine(string(body)))
	}
	return levels, nil
}

// ReopenLogs has Envoy open its access logs again by their names.
func (a *Admin) ReopenLogs(ctx context.Context) error {
	_, err := a.do(ctx, http.MethodPost, "/reopen_logs", nil, mostAnswer)
	return err
}
