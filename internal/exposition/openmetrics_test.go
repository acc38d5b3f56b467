package exposition

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// The grammar of OpenMetrics 1.0, written down once more, apart from what is tested.
var (
	describing = regexp.MustCompile(`^# (HELP|TYPE|UNIT) ([a-zA-Z_:][a-zA-Z0-9_:]*) (.*)$`)
	labelPair  = `[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\["\\n])*"`
	number     = `[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[+-]Inf|NaN`
	labelSet   = `\{(?:` + labelPair + `(?:,` + labelPair + `)*)?\}`
	sampleLine = regexp.MustCompile(`^([a-zA-Z_:][a-zA-Z0-9_:]*)(` + labelSet + `)? (` + number + `)(?: (` + number + `))?(?: # ` + labelSet + ` (?:` + number + `)(?: (?:` + number + `))?)?$`)
	escapedOK  = regexp.MustCompile(`^(?:[^"\\]|\\["\\n])*$`)
)

// checkOpenMetrics reads a whole exposition strictly: every line by the grammar, a family in one piece, its descriptions
// before its samples and once each, samples with the names that their type allows, no name in two families, and one # EOF.
func checkOpenMetrics(text string) error {
	body, ok := strings.CutSuffix(text, "# EOF\n")
	if !ok {
		return fmt.Errorf("does not end with # EOF")
	}
	c := checker{done: map[string]bool{}, samples: map[string]string{}}
	for i, line := range strings.Split(body, "\n") {
		if line == "" && i == strings.Count(body, "\n") {
			break
		}
		if err := c.line(line); err != nil {
			return fmt.Errorf("line %d %q: %w", i+1, line, err)
		}
	}
	return nil
}

type checker struct {
	done            map[string]bool   // families
	samples         map[string]string // whose family a sample's name is
	family, kind    string
	declared        map[string]bool
	samplesOfFamily int
}

var allowed = map[string][]string{
	"counter": {"_total", "_created"}, "gauge": {""}, "unknown": {""}, "stateset": {""}, "info": {"_info"},
	"histogram": {"_bucket", "_sum", "_count", "_created"}, "gaugehistogram": {"_bucket", "_gsum", "_gcount"},
	"summary": {"", "_sum", "_count", "_created"},
}

func (c *checker) line(line string) error {
	if m := describing.FindStringSubmatch(line); m != nil {
		return c.describe(m[1], m[2], m[3])
	}
	m := sampleLine.FindStringSubmatch(line)
	if m == nil {
		return fmt.Errorf("not in the grammar")
	}
	if !c.owns(m[1]) {
		if err := c.begin(m[1]); err != nil {
			return err
		}
	}
	if other, ok := c.samples[m[1]]; ok && other != c.family {
		return fmt.Errorf("the sample's name is the family %s's", other)
	}
	c.samples[m[1]] = c.family
	c.samplesOfFamily++
	v, err := strconv.ParseFloat(m[3], 64)
	if err != nil {
		return err
	}
	if c.kind == "counter" && !(v >= 0) {
		return fmt.Errorf("a counter of %v", v)
	}
	return nil
}

func (c *checker) owns(name string) bool {
	for _, s := range allowed[c.kind] {
		if name == c.family+s {
			return true
		}
	}
	return false
}

func (c *checker) begin(family string) error {
	if c.done[family] {
		return fmt.Errorf("the family %s comes again", family)
	}
	c.done[family] = true
	c.family, c.kind, c.declared, c.samplesOfFamily = family, "unknown", map[string]bool{}, 0
	return nil
}

func (c *checker) describe(what, family, rest string) error {
	if family != c.family || c.samplesOfFamily > 0 {
		if err := c.begin(family); err != nil {
			return err
		}
	}
	if c.declared[what] {
		return fmt.Errorf("%s comes twice", what)
	}
	c.declared[what] = true
	switch what {
	case "TYPE":
		if allowed[rest] == nil {
			return fmt.Errorf("no such type")
		}
		c.kind = rest
	case "HELP":
		if !escapedOK.MatchString(rest) {
			return fmt.Errorf("help is not escaped")
		}
	case "UNIT":
		if !strings.HasSuffix(family, "_"+rest) {
			return fmt.Errorf("the unit is not in the name")
		}
	}
	return nil
}
