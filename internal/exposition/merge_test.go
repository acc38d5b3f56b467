package exposition

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// sourceInput is one source of a merge.
type sourceInput struct {
	format Format
	text   string
	later  string // label of a source that is merged as a Spool
}

func merge(t *testing.T, out Format, sources ...sourceInput) (string, []CopyResult) {
	t.Helper()
	var b bytes.Buffer
	m := NewMerger(&b, out)
	var results []CopyResult
	for i, g := range sources {
		if g.later != "" {
			spool, _ := NewSpool([]byte(g.text), Label{"scrape_target", g.later}, Source{Format: g.format, Once: true})
			m.Join(spool)
			continue
		}
		c, _ := m.Copy(strings.NewReader(g.text), Source{Format: g.format, Rename: i > 0, Once: true})
		results = append(results, c)
	}
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String(), results
}

// repeated returns the series that occur twice in a text with the same timestamp.
func repeated(text string) (twice []string) {
	had := make(map[string]bool)
	for line := range strings.Lines(text) {
		s := sample{}
		if !s.parse([]byte(strings.TrimSuffix(line, "\n")), OpenMetrics) {
			continue
		}
		series := line[:s.value.from] + string(s.text(s.time))
		if had[series] {
			twice = append(twice, series)
		}
		had[series] = true
	}
	return twice
}

func valid(t *testing.T, f Format, text string) {
	t.Helper()
	if f == OpenMetrics {
		if err := checkOpenMetrics(text); err != nil {
			t.Errorf("not valid OpenMetrics: %v\n%s", err, text)
		}
		return
	}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	if _, err := parser.TextToMetricFamilies(strings.NewReader(text)); err != nil {
		t.Errorf("not valid: %v\n%s", err, text)
	}
}

func TestMerge(t *testing.T) {
	for _, c := range []struct {
		name    string
		out     Format
		sources []sourceInput
		want    string
	}{
		{"text stays as it is", Text, []sourceInput{{text: "# HELP a It.\n# TYPE a gauge\na{x=\"1\",} 2 3\na 4\n"}},
			"# HELP a It.\n# TYPE a gauge\na{x=\"1\",} 2 3\na 4\n"},
		{"remarks, blank lines, carriage returns and blanks go", Text, []sourceInput{{text: "# hello\n\n  a   1  \r\n\tb\t{ c = \"d\" } \t2\n"}},
			"a 1\nb{ c = \"d\" } 2\n"},
		{"what is not valid goes, and only that", Text, []sourceInput{{text: "a 1\na{ 2\na{b=\"c\" 3\na x\n9a 1\na{b=\"\xff\"} 1\na{b=\"\\x\"} 1\na{b=\"c\",b=\"d\"} 1\na 1 2 3\na 0x1p3\na 1e999\na{__name__=\"b\"} 1\na 1 1.5\nhalf"}}, "a 1\n"},
		{"counters of text become OpenMetrics where their name allows it", OpenMetrics,
			[]sourceInput{{text: "# TYPE a_total counter\na_total 1\n# TYPE b counter\nb{c=\"d\",} Nan\n# TYPE e untyped\ne{} -Inf 1500\n"}},
			"# TYPE a counter\na_total 1\n# TYPE b unknown\nb{c=\"d\"} NaN\n# TYPE e unknown\ne -Inf 1.500\n# EOF\n"},
		{"two families of text that are one name in OpenMetrics", OpenMetrics,
			[]sourceInput{{text: "# TYPE rq counter\nrq{code=\"200\"} 1\n# TYPE rq_total counter\nrq_total 1\n"}},
			"# TYPE rq unknown\nrq{code=\"200\"} 1\n# TYPE rq_total unknown\nrq_total 1\n# EOF\n"},
		{"numbers in labels are canonical in OpenMetrics", OpenMetrics,
			[]sourceInput{{text: "# TYPE h histogram\nh_bucket{le=\"1\"} 1\nh_bucket{le=\"+Inf\"} 1\nh_sum 1\nh_count 1\n# TYPE s summary\ns{quantile=\"0.5\"} 1\ns{quantile=\"1\"} 1\ns_sum 1\ns_count 1\n# TYPE h_bad histogram\nh_bad_bucket{le=\"x\"} 1\n"}},
			"# TYPE h histogram\nh_bucket{le=\"1.0\"} 1\nh_bucket{le=\"+Inf\"} 1\nh_sum 1\nh_count 1\n# TYPE s summary\ns{quantile=\"0.5\"} 1\ns{quantile=\"1.0\"} 1\ns_sum 1\ns_count 1\n# TYPE h_bad histogram\n# EOF\n"},
		{"quotes in help are escaped in OpenMetrics", OpenMetrics, []sourceInput{{text: "# HELP a say \"hi\" \\n \\\\ \\x\na 1\n"}},
			"# HELP a say \\\"hi\\\" \\n \\\\ \\\\x\na 1\n# EOF\n"},
		{"a counter that counts down is not OpenMetrics", OpenMetrics, []sourceInput{{text: "# TYPE a_total counter\na_total -1\na_total{b=\"c\"} 1\n"}},
			"# TYPE a counter\na_total{b=\"c\"} 1\n# EOF\n"},
		{"OpenMetrics stays as it is", OpenMetrics,
			[]sourceInput{{format: OpenMetrics, text: "# TYPE a counter\n# UNIT a seconds\n# TYPE b_seconds counter\n# UNIT b_seconds seconds\n# HELP b_seconds It.\nb_seconds_total 1.0 # {trace_id=\"x\"} 0.5 1.2\nb_seconds_created 1.2e9\n# TYPE i info\ni_info{v=\"1\"} 1\n# EOF\nmore 1\n"}},
			"# HELP b_seconds It.\n# TYPE b_seconds counter\n# UNIT b_seconds seconds\nb_seconds_total 1.0 # {trace_id=\"x\"} 0.5 1.2\nb_seconds_created 1.2e9\n# TYPE i info\ni_info{v=\"1\"} 1\n# EOF\n"},
		{"an exemplar that is not valid goes alone", OpenMetrics,
			[]sourceInput{{format: OpenMetrics, text: "# TYPE b counter\nb_total 1 # {x} 1\nb_total{c=\"d\"} 1 # {x=\"" + strings.Repeat("y", 128) + "\"} 1\n# EOF\n"}},
			"# TYPE b counter\nb_total 1\nb_total{c=\"d\"} 1\n# EOF\n"},
		{"OpenMetrics becomes text", Text,
			[]sourceInput{{format: OpenMetrics, text: "# TYPE b counter\n# HELP b It \\\"is\\\".\nb_total{c=\"d\"} 1 1.25 # {t=\"x\"} 0.5\nb_created{c=\"d\"} 12\n# TYPE i info\ni_info{v=\"1\"} 1\n# TYPE u unknown\nu 1\n# TYPE s stateset\ns{s=\"a\"} 1\n# TYPE g gaugehistogram\ng_bucket{le=\"+Inf\"} 1\ng_gsum 2\ng_gcount 1\n# EOF\n"}},
			"# HELP b_total It \"is\".\n# TYPE b_total counter\nb_total{c=\"d\"} 1 1250\n# TYPE i_info gauge\ni_info{v=\"1\"} 1\n# TYPE u untyped\nu 1\n# TYPE s gauge\ns{s=\"a\"} 1\n# TYPE g histogram\ng_bucket{le=\"+Inf\"} 1\ng_sum 2\ng_count 1\n"},
		{"a name that is taken: the later source's is renamed", Text,
			[]sourceInput{{text: "# TYPE a gauge\na 1\n"}, {text: "# TYPE a gauge\na 2\n# TYPE b gauge\nb 3\n"}},
			"# TYPE a gauge\na 1\n# TYPE app_a gauge\napp_a 2\n# TYPE b gauge\nb 3\n"},
		{"a name that a histogram's sample has is taken too", Text,
			[]sourceInput{{text: "# TYPE a histogram\na_bucket{le=\"+Inf\"} 1\na_sum 1\na_count 1\n"}, {text: "# TYPE a_count counter\na_count 2\n"}},
			"# TYPE a histogram\na_bucket{le=\"+Inf\"} 1\na_sum 1\na_count 1\n# TYPE app_a_count counter\napp_a_count 2\n"},
		{"the first source has nobody to give way to", Text, []sourceInput{{text: "# TYPE a gauge\na 1\nb 1\n# TYPE a counter\na 2\n"}}, "# TYPE a gauge\na 1\nb 1\n"},
		{"a family in pieces is text still", Text, []sourceInput{{text: "a 1\nb 1\na{c=\"d\"} 2\n# TYPE h summary\nh{quantile=\"0\"} 1\nb{c=\"d\"} 1\nh_sum 1\n"}},
			"a 1\nb 1\na{c=\"d\"} 2\n# TYPE h summary\nh{quantile=\"0\"} 1\nb{c=\"d\"} 1\nh_sum 1\n"},
		{"a family in pieces is no OpenMetrics", OpenMetrics, []sourceInput{{text: "a 1\nb 1\na{c=\"d\"} 2\n"}}, "a 1\nb 1\n# EOF\n"},
		{"a repeated series is written once", Text,
			[]sourceInput{{text: "# TYPE a gauge\na{x=\"1\"} 1\na{x=\"2\"} 1\na{x=\"1\"} 1\na{x=\"1\"} 2\na 1\na{} 2\na 1 5\na 1 6\na 2 5\n# TYPE b counter\nb 1\nb 2\n# TYPE a gauge\na{x=\"2\"} 3\na{x=\"3\"} 3\n"}},
			"# TYPE a gauge\na{x=\"1\"} 1\na{x=\"2\"} 1\na 1\na 1 5\na 1 6\n# TYPE b counter\nb 1\na{x=\"3\"} 3\n"},
		{"a repeated series is not valid in OpenMetrics", OpenMetrics,
			[]sourceInput{{text: "# TYPE h histogram\nh_bucket{le=\"+Inf\"} 1\nh_count 1\nh_bucket{x=\"1\",le=\"+Inf\"} 1\nh_count{x=\"1\"} 1\nh_bucket{le=\"+Inf\"} 1\nh_count 1\na{x=\"1\"} 1\na{ x=\"1\" } 1\n"}},
			"# TYPE h histogram\nh_bucket{le=\"+Inf\"} 1\nh_count 1\nh_bucket{x=\"1\",le=\"+Inf\"} 1\nh_count{x=\"1\"} 1\na{x=\"1\"} 1\n# EOF\n"},
		{"several applications: one family, told apart", Text,
			[]sourceInput{
				{text: "# TYPE envoy_a gauge\nenvoy_a 0\n"},
				{later: "9/m", text: "# TYPE go gauge\ngo 2\ngo 2\n# TYPE own gauge\nown{scrape_target=\"x\"} 3\nown{scrape_target=\"x\",exported_scrape_target=\"y\"} 3\n# TYPE envoy_a gauge\nenvoy_a 4\n"},
				{later: "8/m", format: OpenMetrics, text: "# TYPE go gauge\ngo{y=\"z\"} 2\n# TYPE own gauge\nown 5\n# TYPE x counter\nx_total 1\n# EOF\n"},
				{text: "# TYPE go gauge\ngo 1\n# TYPE x_total gauge\nx_total 1\n# TYPE go gauge\ngo 1\n"},
			},
			"# TYPE envoy_a gauge\nenvoy_a 0\n# TYPE go gauge\ngo 1\ngo{scrape_target=\"9/m\"} 2\ngo{scrape_target=\"8/m\",y=\"z\"} 2\n# TYPE x_total gauge\nx_total 1\n" +
				"# TYPE own gauge\nown{scrape_target=\"9/m\",exported_scrape_target=\"x\"} 3\nown{scrape_target=\"8/m\"} 5\n# TYPE app_envoy_a gauge\napp_envoy_a{scrape_target=\"9/m\"} 4\n" +
				"# TYPE app_x_total counter\napp_x_total{scrape_target=\"8/m\"} 1\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			sources := c.sources
			got, _ := merge(t, c.out, sources...)
			if len(sources) == 4 { // the Spool is joined after Envoy's source and before the first application's
				got = mergeJoined(t, c.out, sources)
			}
			if got != c.want {
				t.Errorf("got\n%s\nwant\n%s", got, c.want)
			}
			valid(t, c.out, got)
		})
	}
}

// mergeJoined merges several applications as the status server does.
func mergeJoined(t *testing.T, out Format, g []sourceInput) string {
	t.Helper()
	var b bytes.Buffer
	m := NewMerger(&b, out)
	_, _ = m.Copy(strings.NewReader(g[0].text), Source{Format: g[0].format, Once: true})
	for _, later := range g[1 : len(g)-1] {
		spool, _ := NewSpool([]byte(later.text), Label{"scrape_target", later.later}, Source{Format: later.format, Once: true})
		m.Join(spool)
	}
	last := g[len(g)-1]
	_, _ = m.Copy(strings.NewReader(last.text), Source{Format: last.format, Rename: true, Once: true})
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestTruncatedSourceIsWrittenUpToItsLastLine(t *testing.T) {
	var b bytes.Buffer
	m := NewMerger(&b, Text)
	broken := io.MultiReader(strings.NewReader("a 1\na{b=\"c\"} 2\na{b=\"ha"), iotest.ErrReader(errors.New("connection reset")))
	if _, err := m.Copy(broken, Source{}); err == nil || err.Error() != "connection reset" {
		t.Errorf("err = %v", err)
	}
	if _, err := m.Copy(strings.NewReader("b 1\n"), Source{Format: OpenMetrics}); !errors.Is(err, ErrNoEOF) {
		t.Errorf("OpenMetrics without its end: %v", err)
	}
	if err := m.Close(); err != nil || b.String() != "a 1\na{b=\"c\"} 2\nb 1\n" {
		t.Errorf("%v, %q", err, b.String())
	}
}

// endless is a reader that repeats a text without end.
type endless struct {
	line string
	n    int
	read int64
}

func (e *endless) Read(p []byte) (int, error) {
	n := 0
	for n < len(p) {
		line := e.line
		if strings.Contains(line, "%d") {
			line = fmt.Sprintf(line, e.n)
		}
		if n+len(line) > len(p) && n > 0 {
			break
		}
		n += copy(p[n:], line)
		e.n++
	}
	e.read += int64(n)
	return n, nil
}

func TestSourceIsLimited(t *testing.T) {
	for name, e := range map[string]*endless{
		"series": {line: "a{n=\"%d\"} 1\n"}, "families": {line: "a%d 1\n"}, "one line": {line: "xxxxxxxxxxxxxxxx"}, "nothing": {line: "\n"},
		"garbage": {line: "{{{{\n"},
	} {
		t.Run(name, func(t *testing.T) {
			m := NewMerger(io.Discard, Text)
			var much *LimitError
			limits := Limits{Bytes: 8 << 20, Families: 1000}
			if _, err := m.Copy(e, Source{Limits: limits}); !errors.As(err, &much) {
				t.Errorf("err = %v", err)
			}
			if e.read > limits.Bytes+1<<20 {
				t.Errorf("%d bytes were read", e.read)
			}
		})
	}
}

func TestTooLongLineIsDropped(t *testing.T) {
	long := "# HELP a " + strings.Repeat("x", 3*maxLine) + "\n"
	got, results := merge(t, Text, sourceInput{text: "a 1\n" + long + "b 2\n"})
	if got != "a 1\nb 2\n" || results[0].Invalid != 1 {
		t.Errorf("%q, %+v", got, results)
	}
}

func TestMergeBuffersOneLine(t *testing.T) {
	// Buffering one million series would increase the number of allocations.
	e := &endless{line: "a_family_of_metrics{path=\"/one\",code=\"200\"} 1\n"}
	m := NewMerger(io.Discard, OpenMetrics)
	allocated := testing.AllocsPerRun(1, func() {
		if _, err := m.Copy(io.LimitReader(e, 64<<20), Source{}); err != nil {
			t.Error(err)
		}
	})
	if allocated > 1000 {
		t.Errorf("%v allocations for a million lines", allocated)
	}
}

func TestRepeatedSeriesLimit(t *testing.T) {
	const more = 1000
	var lines, out strings.Builder
	for n := range maxSeries + more {
		fmt.Fprintf(&lines, "a{n=\"%d\"} 1\n", n)
	}
	m := NewMerger(&out, Text)
	copied, err := m.Copy(strings.NewReader(lines.String()+lines.String()), Source{Once: true})
	if err != nil || copied.Repeated != maxSeries || copied.Invalid != 0 {
		t.Errorf("%+v %v, want %d repeated", copied, err, maxSeries)
	}
	if err := m.Close(); err != nil || strings.Count(out.String(), "\n") != maxSeries+2*more {
		t.Errorf("%d lines, want %d; %v", strings.Count(out.String(), "\n"), maxSeries+2*more, err)
	}
}

func TestParseAccept(t *testing.T) {
	for accept, want := range map[string]Accepted{
		"":           {Text: true},
		"text/plain": {Text: true},
		"application/openmetrics-text; version=1.0.0":                                               {OpenMetrics: true},
		"application/openmetrics-text;version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.3,*/*;q=0.2": {Text: true, OpenMetrics: true},
		"text/plain;q=0.9,application/openmetrics-text;q=0.1":                                       {Text: true},
		"*/*":                                  {Text: true},
		"application/json":                     {Text: true},
		"application/openmetrics-text;q=0":     {Text: true},
		"application/openmetrics-text;q=x,;;,": {Text: true},
	} {
		if got := ParseAccept([]string{accept}); got != want {
			t.Errorf("%q: %+v, want %+v", accept, got, want)
		}
	}
}

// tokens are parts of valid and invalid expositions.
var tokens = []string{
	"\n", "\n", "\n", " ", "# TYPE ", "# HELP ", "# UNIT ", "# EOF\n", "#", "a", "b", "a_total", "b_total", "a_count", "a_sum", "a_bucket",
	"a_info", "a_created", "a_gsum", "a_gcount", "app_a", "app_b", "s", "_s", " counter\n", " gauge\n", " histogram\n", " summary\n", " info\n",
	" unknown\n", " untyped\n", " stateset\n", " gaugehistogram\n", " 1\n", " 2 3\n", " -1\n", " NaN\n", " +inf\n", " 0x1\n", "{x=\"y\"}", "{x=\"y\",}",
	"{le=\"1\"}", "{le=\"z\"}", "{quantile=\"0.5\"}", "{quantile=\"q\",x=\"\\n\"}", "{}", "{ x = \"\" }", "{scrape_target=\"t\"}",
	"{exported_scrape_target=\"t\",scrape_target=\"t\"}", " # {t=\"u\"} 1", " # {} x", "\\", "\"", "\xff", "\r\n", "\t", "{", "}", ",", "=", "9", ":", "é", "# TYPE a_total counter\n",
}

func spell(data []byte) string {
	var b strings.Builder
	for _, c := range data {
		b.WriteString(tokens[int(c)%len(tokens)])
	}
	return b.String()
}

// FuzzMergeOfTokens builds sources from tokens. Such sources reach the rules about names sooner than arbitrary bytes.
func FuzzMergeOfTokens(f *testing.F) {
	for i := range 16 {
		line := []byte{4, byte(9 + i), byte(24 + i%9), byte(9 + i), byte(39 + i), 33, byte(13 + i%4), 34}
		f.Add(line, append(line, line...), []byte{byte(9 + i), 33, 9, 33, byte(11 + i%6), 33}, uint8(37*i))
	}
	f.Fuzz(func(t *testing.T, a, b, c []byte, bits uint8) {
		format := func(bit int) Format { return Format(bits >> bit & 1) }
		out := mergeJoined(t, format(0), []sourceInput{{format(1), spell(a), ""}, {format(2), spell(b), "9/m"}, {format(3), spell(c), "8/m"}, {format(4), spell(c) + spell(a) + spell(b), ""}})
		valid(t, format(0), out)
		if twice := repeated(out); len(twice) > 0 {
			t.Errorf("twice: %q in\n%s", twice, out)
		}
	})
}

func FuzzMerge(f *testing.F) {
	f.Add("# TYPE a counter\na 1\n", "# HELP a x\n# TYPE a_total counter\na_total{b=\"c\"} 2 3\n", "# TYPE a histogram\na_bucket{le=\"1\"} 1\na_sum 1\na_count 1\n", uint8(0))
	f.Add("a 1\nb 1\na 2\n", "# TYPE a info\na_info{x=\"y\"} 1\n# EOF\n", "# TYPE a counter\na_total 1 # {x=\"y\"} 1 1\n# EOF\n", uint8(0xff))
	f.Add("# TYPE s summary\ns{quantile=\"0.5\"} NaN\ns_sum 1\ns_count 2\n", "s_sum 1\ns{quantile=\"z\"} 1\n", "# HELP s \\q\"\ns 1 -5\n", uint8(5))
	f.Add("# TYPE g gaugehistogram\ng_bucket{le=\"+Inf\"} 1\ng_gsum 2\ng_gcount 1\n", "app_g 1\ng 1\n", "# UNIT g_s s\n# TYPE g_s gauge\ng_s 1\n# EOF", uint8(3))
	f.Fuzz(func(t *testing.T, a, b, c string, bits uint8) {
		format := func(bit int) Format { return Format(bits >> bit & 1) }
		out := mergeJoined(t, format(0), []sourceInput{{format(1), a, ""}, {format(2), b, "9/m"}, {format(3), c, "8/m"}, {format(4), a + c + b, ""}})
		valid(t, format(0), out)
		if twice := repeated(out); len(twice) > 0 {
			t.Errorf("twice: %q in\n%s", twice, out)
		}
	})
}

func TestCutChangesNamesOnly(t *testing.T) {
	const given = "# HELP first_next_requests_total It.\n# TYPE first_next_requests_total counter\nfirst_next_requests_total{a=\"first_next_b\"} 1\n" +
		"first_next_requests_total{a=\"first_next_b\"} 2\nfirst_other{a=\"\\nfirst_next_\"} 2\nfirst_next_sum{} 3\nfirst_next 4\nfirst_first_next_x 5\n"
	const want = "# HELP next_requests_total It.\n# TYPE next_requests_total counter\nnext_requests_total{a=\"first_next_b\"} 1\n" +
		"next_requests_total{a=\"first_next_b\"} 2\nfirst_other{a=\"\\nfirst_next_\"} 2\nnext_sum 3\nfirst_next 4\nfirst_first_next_x 5\n"
	for name, from := range map[string]io.Reader{"at once": strings.NewReader(given), "line by line": &lineReader{given}} {
		var out strings.Builder
		m := NewMerger(&out, Text)
		if _, err := m.Copy(from, Source{Cut: Cut{First: "first_", Next: "next_"}}); err != nil {
			t.Fatal(err)
		}
		if err := m.Close(); err != nil || out.String() != want {
			t.Errorf("%s: %v\n%s", name, err, out.String())
		}
	}
}

func TestHelpTextIsAdded(t *testing.T) {
	const given = "# TYPE a counter\na 1\n# HELP b Own.\n# TYPE b gauge\nb 2\nc 3\n# TYPE a counter\na{d=\"e\"} 4\n"
	for format, want := range map[Format]string{
		Text:        "# HELP a Of x.\n# TYPE a counter\na 1\n# HELP b Own.\n# TYPE b gauge\nb 2\n# HELP c Of x.\nc 3\na{d=\"e\"} 4\n",
		OpenMetrics: "# HELP a Of x.\n# TYPE a unknown\na 1\n# HELP b Own.\n# TYPE b gauge\nb 2\n# HELP c Of x.\nc 3\n# EOF\n",
	} {
		var out strings.Builder
		m := NewMerger(&out, format)
		if _, err := m.Copy(strings.NewReader(given), Source{Help: "Of x."}); err != nil {
			t.Fatal(err)
		}
		if err := m.Close(); err != nil || out.String() != want {
			t.Errorf("%v: %v\n%s", format, err, out.String())
		}
		valid(t, format, out.String())
	}
}

func TestUntilWaitsBeforePrefix(t *testing.T) {
	var out strings.Builder
	m := NewMerger(&out, Text)
	app := m.Begin(strings.NewReader("# TYPE app counter\napp 1\n# HELP their_x Mine.\n# TYPE their_x gauge\ntheir_x{a=\"b\"} 2\ntheir_x 3\n# TYPE after gauge\nafter 4\n"), Source{Rename: true})
	if !app.CopyUntil("none", "their_") {
		t.Error("CopyUntil does not report that it waits")
	}
	if _, err := m.Copy(strings.NewReader("# TYPE their_x counter\ntheir_x 9\nlast 1\n"), Source{}); err != nil {
		t.Error(err)
	}
	copied, err := app.Finish()
	if err != nil || copied.Families != 3 || copied.Duplicates != 0 || copied.Invalid != 0 {
		t.Errorf("%+v %v", copied, err)
	}
	if again, err2 := app.Finish(); err2 != nil || again != copied {
		t.Errorf("at the second call: %+v %v", again, err2)
	}
	const want = "# TYPE app counter\napp 1\n# TYPE their_x counter\ntheir_x 9\nlast 1\n# HELP app_their_x Mine.\n# TYPE app_their_x gauge\n" +
		"app_their_x{a=\"b\"} 2\napp_their_x 3\n# TYPE after gauge\nafter 4\n"
	if err := m.Close(); err != nil || out.String() != want {
		t.Errorf("%v\n%s", err, out.String())
	}
}

func TestHiddenFamiliesAreNotWritten(t *testing.T) {
	var out strings.Builder
	m := NewMerger(&out, Text)
	result, err := m.Copy(strings.NewReader("# TYPE a_active gauge\na_active{x=\"1\"} 1\na_active{x=\"2\"} 2\n# TYPE b gauge\nb 3\n# TYPE c_active gauge\nc_active 4\n# TYPE d_cx_total counter\nd_cx_total 5\n"),
		Source{HiddenSuffixes: []string{"_active", "_cx_total"}})
	if err != nil || m.Close() != nil {
		t.Fatal(err)
	}
	if want := "# TYPE b gauge\nb 3\n"; out.String() != want || result.Families != 1 || result.Duplicates+result.Invalid+result.Reserved != 0 {
		t.Errorf("%+v, %q, want %q", result, out.String(), want)
	}
}
