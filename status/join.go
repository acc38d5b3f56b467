package status

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/exposition"
)

// write writes the sources one after the other. While one is written the next ones answer, as far as their sockets have
// room.
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
	_ = m.Close() // an error is the scraper's, who went away: no source failed
}

// applicationFirst says whether the one application has an answer before Envoy has. Envoy takes long to begin: it puts
// its whole answer together first. What is written meanwhile takes no time.
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

// envoysNames are how Envoy's families begin. Applications' of such names come after them, and give way.
var envoysNames = []string{"envoy_", bareNames.Next}

// envoysHelp describes Envoy's families, of which Envoy says nothing.
const envoysHelp = "A statistic of Envoy."

func (sc *scrape) writeApplicationFirst(m *exposition.Merger) {
	app := sc.apps[0]
	inTime := app.endBy(sc.early)
	app.begin(m, true)
	waits := app.copying.Until(envoysNames...)
	inTime()
	if !waits {
		app.finish() // which leaves Envoy the memory that it was read in
		sc.pause()
		sc.envoy.copyTo(m, false)
		return
	}
	defer sc.envoy.endBy(sc.leaving())()
	sc.envoy.copyTo(m, false)
	app.finish()
}

// pause tells that there is nothing to do until Envoy answers.
func (sc *scrape) pause() {
	if sc.Paused == nil {
		return
	}
	select {
	case <-sc.envoy.answered:
	default:
		sc.Paused()
	}
}

// leaving is when Envoy has to end so that there is time for the rest of the application, which may have begun late.
func (sc *scrape) leaving() time.Time {
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

// copyTo copies the source, if it answers.
func (s *source) copyTo(m *exposition.Merger, rename bool) {
	<-s.answered
	if s.err == nil {
		s.begin(m, rename)
		s.finish()
	}
}

func (s *source) begin(m *exposition.Merger, rename bool) {
	from := exposition.Source{Format: s.format, Limits: s.limits, Rename: rename}
	switch s.kind {
	case sourceEnvoy:
		from.Cut, from.Help = bareNames, envoysHelp
	case sourceApplication: // what reads text warns of a series that is there twice; the other refuses all for it
		from.Once = m.Format() == exposition.OpenMetrics
	}
	s.copying = m.Begin(s, from)
}

func (s *source) finish() { s.copied, s.err = s.copying.Finish() }

func (s *source) spooled() *exposition.Spool {
	<-s.read
	if s.err == nil {
		s.err = s.inTime(s.unwhole)
	}
	spool, err := exposition.NewSpool(s.text, exposition.Label{Name: targetLabel, Value: s.name},
		exposition.Source{Format: s.format, Limits: exposition.Limits{Families: s.limits.Families}, Once: true})
	if s.err == nil {
		s.err = err
	}
	return spool
}

// failed counts and logs a source that is not whole, unless it is the scraper that went away.
func (sc *scrape) failed(src *source) {
	if src.err == nil || sc.caller.Err() != nil {
		return
	}
	sc.metrics.failures.WithLabelValues(src.kind).Inc()
	sc.Logger.Debug("a source is missing from the metrics, or a part of it", "source", src.String(), "error", src.err)
}

// report adds to the scrape what became of its sources: the counters of failures tell it only the next time.
func (sc *scrape) report(m *exposition.Merger) {
	var up, invalid, taken, repeated bytes.Buffer
	head := func(b *bytes.Buffer, name, help string) {
		fmt.Fprintf(b, "# HELP %s %s\n# TYPE %s gauge\n", name, help, name)
	}
	head(&up, sourceUp, "Whether a source is in this scrape, and whole.")
	head(&invalid, sourceInvalid, "Lines of a source that were left out of this scrape because they are not valid.")
	head(&taken, sourceDuplicates, "Families of a source that were left out of this scrape because another has their name.")
	head(&repeated, sourceRepeated, "Samples of a source that were left out of this scrape because it has their series twice.")
	for _, src := range sc.sources() {
		sc.failed(src)
		labels := fmt.Sprintf(`{source="%s",target="%s"}`, src.kind, labelEscapes.Replace(src.name))
		whole := 1
		if src.err != nil {
			whole = 0
			m.Comment(src.complaint())
		}
		fmt.Fprintf(&up, "%s%s %d\n", sourceUp, labels, whole)
		fmt.Fprintf(&invalid, "%s%s %d\n", sourceInvalid, labels, src.copied.Invalid)
		fmt.Fprintf(&taken, "%s%s %d\n", sourceDuplicates, labels, src.copied.Duplicates)
		fmt.Fprintf(&repeated, "%s%s %d\n", sourceRepeated, labels, src.copied.Repeated)
	}
	m.Release(reportNames...)
	_, _ = m.Copy(io.MultiReader(&up, &invalid, &taken, &repeated), exposition.Source{})
}

func (s *source) complaint() string {
	text := s.err.Error()
	if len(text) > 300 {
		text = text[:300]
	}
	if s.copied.Families == 0 {
		return fmt.Sprintf("%s is missing: %s", s, text)
	}
	return fmt.Sprintf("%s is not whole: %s", s, text)
}
