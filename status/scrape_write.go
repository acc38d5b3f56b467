package status

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/exposition"
)

// write writes the sources to the response one after another. While it writes one source, the kernel buffers the
// responses of the next sources.
func (sc *scrape) write(m *exposition.Merger) {
	m.Reserve(reportNames...)
	copied, err := m.Copy(bytes.NewReader(sc.own), exposition.Source{})
	sc.agent.copied, sc.agent.err = copied, errors.Join(sc.agent.err, err)
	if sc.applicationFirst() {
		sc.writeApplicationFirst(m)
	} else {
		sc.writeEnvoyFirst(m)
	}
	sc.report(m)
	_ = m.Close() // an error means that the scraper has disconnected
}

// applicationFirst reports whether the pod has one application and it responded before Envoy. Its metrics are then
// written first. This does not delay the scrape, because Envoy builds its whole response before it sends the first
// byte.
func (sc *scrape) applicationFirst() bool {
	if sc.envoy == nil || len(sc.apps) != 1 {
		return false
	}
	select {
	case <-sc.apps[0].answered:
		return sc.apps[0].err == nil
	case <-sc.envoy.answered:
	case <-time.After(time.Until(sc.early)):
	}
	return false
}

// envoyPrefixes are the name prefixes of Envoy's metric families. If an application has families with such a prefix,
// they are written after Envoy's.
var envoyPrefixes = []string{"envoy_", bareNames.Next}

// envoyHelp is the HELP text of Envoy's metric families, because Envoy does not send one.
const envoyHelp = "A statistic of Envoy."

func (sc *scrape) writeApplicationFirst(m *exposition.Merger) {
	app := sc.apps[0]
	inTime := app.endBy(sc.early)
	app.begin(m, true)
	waits := app.copying.CopyUntil(envoyPrefixes...)
	inTime()
	if !waits {
		app.finish() // releases its read buffer for Envoy's response
		sc.envoy.copyTo(m, false)
		return
	}
	defer sc.envoy.endBy(sc.envoyDeadline())()
	sc.envoy.copyTo(m, false)
	app.finish()
}

// envoyDeadline returns when Envoy's response must end: sc.early or, if that is later, after half of the remaining
// time. Time then remains for the rest of the application's response.
func (sc *scrape) envoyDeadline() time.Time {
	half := time.Now().Add(time.Until(sc.envoy.until) / 2)
	if half.After(sc.early) {
		return half
	}
	return sc.early
}

func (sc *scrape) writeEnvoyFirst(m *exposition.Merger) {
	if sc.envoy != nil && len(sc.apps) > 0 {
		defer sc.envoy.endBy(sc.early)()
	}
	if sc.envoy != nil {
		sc.envoy.copyTo(m, false)
	}
	var spools []*exposition.Spool
	for i, app := range sc.apps {
		if i > 0 {
			spools = append(spools, app.spooled())
		}
	}
	m.Join(spools...)
	if len(sc.apps) > 0 {
		sc.apps[0].copyTo(m, true)
	}
	m.Flush()
	for i, spool := range spools {
		sc.apps[i+1].copied = spool.Result()
	}
}

// copyTo waits for the source's response and writes it to m. If the request failed, it writes nothing.
func (s *source) copyTo(m *exposition.Merger, rename bool) {
	<-s.answered
	if s.err == nil {
		s.begin(m, rename)
		s.finish()
	}
}

func (s *source) begin(m *exposition.Merger, rename bool) {
	from := exposition.Source{Format: s.format, Limits: s.limits, Rename: rename, Reserved: s.reserved}
	switch s.kind {
	case sourceEnvoy:
		from.Cut, from.Help, from.HiddenSuffixes, from.Unpack = bareNames, envoyHelp, s.hidden, true
	case sourceApplication: // readers of OpenMetrics reject a scrape with repeated series; readers of text format only warn
		from.Once = m.Format() == exposition.OpenMetrics
	}
	s.copying = m.Begin(s, from)
}

func (s *source) finish() { s.copied, s.err = s.copying.Finish() }

func (s *source) spooled() *exposition.Spool {
	<-s.read
	if s.err == nil {
		s.err = s.timeoutError(s.incomplete)
	}
	spool, err := exposition.NewSpool(s.text, exposition.Label{Name: targetLabel, Value: s.name},
		exposition.Source{Format: s.format, Limits: exposition.Limits{Families: s.limits.Families}, Once: true, Reserved: s.reserved})
	if s.err == nil {
		s.err = err
	}
	return spool
}

// recordFailure counts and logs a missing or incomplete source, unless the scraper has disconnected.
func (sc *scrape) recordFailure(src *source) {
	if src.err == nil || sc.caller.Err() != nil {
		return
	}
	sc.metrics.failures.WithLabelValues(src.kind).Inc()
	sc.Logger.Debug("a source of metrics is missing or incomplete in a scrape", "source", src.String(), "error", src.err)
}

// report appends metrics about the result of each source, because the failure counters show it only in the next scrape.
func (sc *scrape) report(m *exposition.Merger) {
	var up, invalid, taken, reserved, repeated bytes.Buffer
	head := func(b *bytes.Buffer, name, help string) {
		fmt.Fprintf(b, "# HELP %s %s\n# TYPE %s gauge\n", name, help, name)
	}
	head(&up, sourceUp, "1 if a source is completely in this scrape, else 0.")
	head(&invalid, sourceInvalid, "Lines of a source that were dropped from this scrape because they are invalid.")
	head(&taken, sourceDuplicates, "Families of a source that were dropped from this scrape because another source has the same name.")
	head(&reserved, sourceReserved, "Families of a source that were dropped from this scrape because their names are reserved for Envoy and the agent.")
	head(&repeated, sourceRepeated, "Samples of a source that were dropped from this scrape because their series is duplicated.")
	for _, src := range sc.sources() {
		sc.recordFailure(src)
		labels := fmt.Sprintf(`{source="%s",target="%s"}`, src.kind, labelEscapes.Replace(src.name))
		whole := 1
		if src.err != nil {
			whole = 0
			m.Comment(src.complaint())
		}
		if n := src.copied.Reserved; n > 0 {
			m.Comment(fmt.Sprintf("%s: %d families are dropped, because names with %s are reserved for Envoy and the agent", src, n, strings.Join(reservedNames, ", ")))
		}
		fmt.Fprintf(&up, "%s%s %d\n", sourceUp, labels, whole)
		fmt.Fprintf(&invalid, "%s%s %d\n", sourceInvalid, labels, src.copied.Invalid)
		fmt.Fprintf(&taken, "%s%s %d\n", sourceDuplicates, labels, src.copied.Duplicates)
		fmt.Fprintf(&reserved, "%s%s %d\n", sourceReserved, labels, src.copied.Reserved)
		fmt.Fprintf(&repeated, "%s%s %d\n", sourceRepeated, labels, src.copied.Repeated)
	}
	m.Release(reportNames...)
	_, _ = m.Copy(io.MultiReader(&up, &invalid, &taken, &reserved, &repeated), exposition.Source{})
}

func (s *source) complaint() string {
	text := s.err.Error()
	if len(text) > 300 {
		text = text[:300]
	}
	if s.copied.Families == 0 {
		return fmt.Sprintf("%s is missing: %s", s, text)
	}
	return fmt.Sprintf("%s is incomplete: %s", s, text)
}
