package exposition

import (
	"bytes"
	"io"
	"strings"
	"testing"
)

// lineReader is a reader that returns at most one line per call, so that no line can be copied without parsing.
type lineReader struct{ rest string }

func (r *lineReader) Read(p []byte) (int, error) {
	if r.rest == "" {
		return 0, io.EOF
	}
	end := strings.IndexByte(r.rest, '\n') + 1
	if end == 0 {
		end = len(r.rest)
	}
	n := copy(p, r.rest[:end])
	r.rest = r.rest[n:]
	return n, nil
}

// mergedFrom merges two sources and returns the output and both results. If waitAt is set, the second source is copied
// up to that prefix before the first source, and its rest afterwards.
func mergedFrom(out Format, formats [2]Format, once bool, first, second io.Reader, waitAt ...string) (string, [2]CopyResult) {
	var b bytes.Buffer
	var copied [2]CopyResult
	m := NewMerger(&b, out)
	cut := Cut{First: "a", Next: "b"}
	copied[0], _ = m.Copy(first, Source{Format: formats[0], Cut: cut, Once: once})
	parts := m.Begin(second, Source{Format: formats[1], Rename: true, Cut: cut, Once: once})
	parts.CopyUntil(waitAt...)
	copied[1], _ = parts.Finish()
	copied[0].Bytes, copied[1].Bytes = 0, 0 // depends on how much was read after "# EOF"
	_ = m.Close()
	return b.String(), copied
}

func sameAsParsed(t *testing.T, out Format, formats [2]Format, first, second string) {
	t.Helper()
	for _, once := range []bool{false, true} {
		got, told := mergedFrom(out, formats, once, strings.NewReader(first), strings.NewReader(second))
		want, parsed := mergedFrom(out, formats, once, &lineReader{first}, &lineReader{second}, "a", "s")
		if got != want || told != parsed {
			t.Errorf("in one piece:\n%s%+v\nline by line:\n%s%+v", got, told, want, parsed)
		}
		valid(t, out, got)
	}
}

func TestVerbatimCopyEqualsParsing(t *testing.T) {
	const labels = `{c="x"}`
	for name, text := range map[string]string{
		"counters":                               "# TYPE a counter\na" + labels + " 1\na" + labels + " 2\na{c=\"y\"} 2\n# TYPE b counter\nb" + labels + " 1\nb{c=\"y\"} 3\n",
		"a counter that counts down":             "# TYPE a_total counter\na_total" + labels + " 1\na_total" + labels + " -1\na_total" + labels + " 1.5e3\na_total" + labels + " NaN\n",
		"values":                                 "a" + labels + " 1\na" + labels + " 1e999\na" + labels + " 1.5\na" + labels + " .\na" + labels + " 1-2\na" + labels + " e\na" + labels + " +1\na" + labels + " 1.\na" + labels + " 12345678901234567890\na" + labels + " 1_0\na" + labels + " \na" + labels + "\na \na" + labels + "  1\na" + labels + "1\na" + labels + " 1 5\na" + labels + " 1\r\n",
		"histograms":                             "# TYPE h histogram\nh_bucket{le=\"1\"} 1\nh_bucket{le=\"+Inf\"} 1\nh_sum 1.5\nh_count 1\nh_bucket{le=\"1\"} 1\nh_bucket{le=\"+Inf\"} 1\nh_created 5\nh_sum{} 1\nh_bucketx 1\nh 1\n",
		"a label that is a number in one family": "# TYPE a gauge\na{le=\"x\"} 1\na{le=\"x\"} 2\n# TYPE h histogram\nh_bucket{le=\"x\"} 1\nh_bucket{le=\"x\"} 2\n# TYPE s summary\ns{le=\"x\"} 1\ns{le=\"x\"} 2\n",
		"gauge histograms":                       "# TYPE g gaugehistogram\ng_bucket{le=\"1.0\"} 1\ng_gsum" + labels + " 1\ng_gsum" + labels + " 1\ng_gcount" + labels + " 1\n",
		"names that go on":                       "# TYPE a gauge\na" + labels + " 1\nab" + labels + " 2\na" + labels + " 3\na 1\nab 1\na_total 1\na1 1\n",
		"labels that end early":                  "a" + labels + " 1\na" + labels + "} 1\na" + labels + "{} 1\na{c=\"x\" 1\na{c=\"x} 1\n",
		"blanks and commas":                      "a{c=\"x\", d=\"y\"} 1\na{c=\"x\", d=\"y\"} 2\na{c=\"x\",} 1\na{c=\"x\",} 1\na {c=\"x\"} 1\na {c=\"x\"} 1\n",
		"names that are cut":                     "# TYPE ab counter\nab" + labels + " 1\nab" + labels + " 2\nb" + labels + " 3\nab" + labels + " 4\nab 1\n# TYPE b gauge\nab 5\n# TYPE abh histogram\nabh_count" + labels + " 1\nabh_count" + labels + " 2\nbh_count 1\n",
		"times and exemplars":                    "# TYPE a counter\na_total" + labels + " 1 2\na_total" + labels + " 3\na_total{c=\"z\"} 1 # {t=\"u\"} 1\na_total{c=\"z\"} 1\n",
		"an end":                                 "# TYPE i info\ni_info" + labels + " 1\ni_info" + labels + " 1\n# TYPE s stateset\ns{s=\"a\"} 1\ns{s=\"a\"} 0\n# EOF\ni_info" + labels + " 1\n",
		"half a line":                            "a" + labels + " 1\na" + labels + " 2\na" + labels + " 3",
	} {
		t.Run(name, func(t *testing.T) {
			for bits := range 8 {
				formats := [2]Format{Format(bits & 1), Format(bits >> 1 & 1)}
				sameAsParsed(t, Format(bits>>2), formats, text, strings.ReplaceAll(text, `"x"`, `"y"`)+"# TYPE z gauge\nz"+labels+" 1\nz"+labels+" 2\n")
			}
		})
	}
}

func FuzzVerbatimCopy(f *testing.F) {
	for i := range 16 {
		line := []byte{4, byte(9 + i), byte(24 + i%9), byte(9 + i), byte(39 + i), 33, byte(9 + i), byte(39 + i), 33, byte(13 + i%4), 34}
		f.Add(line, append(line, line...), uint8(37*i))
	}
	f.Fuzz(func(t *testing.T, a, b []byte, bits uint8) {
		sameAsParsed(t, Format(bits>>2&1), [2]Format{Format(bits & 1), Format(bits >> 1 & 1)}, spell(a)+spell(a), spell(b)+spell(a))
	})
}
