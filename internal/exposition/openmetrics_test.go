package exposition

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// This is a second implementation of OpenMetrics 1.0, independent of the tested code.
var (
	describing = regexp.MustCompile(`^# (HELP|TYPE|UNIT) ([a-zA-Z_:][a-zA-Z0-9_:]*) (.*)$`)
	labelPair  = `[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\["\\n])*"`
	number     = `[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[+-]Inf|NaN`
	labelSet   = `\{(?:` + labelPair + `(?:,` + labelPair + `)*)?\}`
	sampleLine = regexp.MustCompile(`^([a-zA-Z_:][a-zA-Z0-9_:]*)(` + labelSet + `)? (` + number + `)(?: (` + number + `))?(?: # ` + labelSet + ` (?:` + number + `)(?: (?:` + number + `))?)?$`)
	escapedOK  = regexp.MustCompile(`^(?:[^"\\]|\\["\\n])*$`)
)

// checkOpenMetrics checks an exposition strictly. Every line follows the grammar. A family is not interrupted. Its
// descriptions precede its samples and occur once. Samples have the names that the type allows. No name occurs in two
// families, and the last line is # EOF.
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
	samples         map[string]string // family by the name of the sample
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
		return fmt.Errorf("the sample's name belongs to the family %s", other)
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
		return fmt.Errorf("the family %s is repeated", family)
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
		return fmt.Errorf("%s is repeated", what)
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
