package wasm

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// missingModule is the reason why a filter is replaced by a placeholder.
type missingModule struct{ reason string }

// ReportMissing sets the function that receives a reason while filters are replaced by placeholders, and "" when no
// filter is. The function must not block. Set it before the first call of Rewrite.
func (m *Modules) ReportMissing(report func(reason string)) { m.reportMissing = report }

// addMissing records that a filter is replaced by a placeholder, until the returned function is called. A later record
// for the filter replaces it.
func (m *Modules) addMissing(f *filter, cause error) (remove func()) {
	name, record := f.resource.GetName(), &missingModule{fmt.Sprintf("the Wasm module of filter %s cannot be fetched, so %s: %v", f.resource.GetName(), f.describePlaceholder(), cause)}
	m.changeMissing(func() { m.missing[name] = record })
	return func() {
		m.changeMissing(func() {
			if m.missing[name] == record {
				delete(m.missing, name)
			}
		})
	}
}

func (m *Modules) changeMissing(change func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change()
	if m.reportMissing == nil {
		return
	}
	var reasons []string
	for _, name := range slices.Sorted(maps.Keys(m.missing)) {
		reasons = append(reasons, m.missing[name].reason)
	}
	m.reportMissing(strings.Join(reasons, "; "))
}

// retryMissing returns the retry of a filter that is replaced by a placeholder. It removes the record when it ends: the
// module was fetched, or the filter was replaced or removed.
func (m *Modules) retryMissing(f *filter, module Module, cause error, blocked bool) func(context.Context) error {
	remove := m.addMissing(f, cause)
	return func(ctx context.Context) error {
		defer remove()
		if blocked { // no attempt can succeed
			<-ctx.Done()
			return context.Cause(ctx)
		}
		return m.waitForModule(ctx, module)
	}
}
