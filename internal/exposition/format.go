package exposition

import (
	"mime"
	"strconv"
	"strings"
)

// Format is an exposition format.
type Format uint8

// The exposition formats.
const (
	Text Format = iota
	OpenMetrics
)

const openMetricsType = "application/openmetrics-text"

// ContentType returns the Content-Type of a response in the format.
func (f Format) ContentType() string {
	if f == OpenMetrics {
		return openMetricsType + "; version=1.0.0; charset=utf-8"
	}
	return "text/plain; version=0.0.4; charset=utf-8"
}

func (f Format) String() string {
	if f == OpenMetrics {
		return "OpenMetrics"
	}
	return "text"
}

// FormatOf returns the format that a Content-Type specifies. An empty Content-Type is text format. ok is false for
// unknown types.
func FormatOf(contentType string) (f Format, ok bool) {
	if contentType == "" {
		return Text, true
	}
	kind, _, err := mime.ParseMediaType(contentType)
	switch {
	case err != nil:
		return Text, false
	case kind == openMetricsType:
		return OpenMetrics, true
	}
	return Text, kind == "text/plain"
}

// Accepted contains the formats that a scraper accepts.
type Accepted struct {
	Text, OpenMetrics bool
}

// ParseAccept parses the Accept headers of a scrape. If there is no header, or only unknown types, the result is text
// format. OpenMetrics is set only if its quality value is at least that of text.
func ParseAccept(headers []string) Accepted {
	var text, wildcard, open float64
	for _, header := range headers {
		for item := range strings.SplitSeq(header, ",") {
			kind, q := acceptItem(item)
			switch kind {
			case openMetricsType:
				open = max(open, q)
			case "text/plain", "text/*":
				text = max(text, q)
			case "*/*":
				wildcard = max(wildcard, q)
			}
		}
	}
	text = max(text, wildcard)
	a := Accepted{Text: text > 0, OpenMetrics: open > 0 && open >= text}
	if !a.OpenMetrics {
		a.Text = true
	}
	return a
}

func acceptItem(item string) (kind string, q float64) {
	kind, parameters, err := mime.ParseMediaType(item)
	if err != nil {
		return "", 0
	}
	text, present := parameters["q"]
	if !present {
		return kind, 1
	}
	q, err = strconv.ParseFloat(text, 64)
	if err != nil || !(q >= 0 && q <= 1) {
		return kind, 0
	}
	return kind, q
}
