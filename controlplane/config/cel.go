package config

import (
	"errors"
	"fmt"
	"regexp/syntax"
	"slices"
)

// Limits of an expression: its length in bytes and its nesting depth. Envoy evaluates each expression for every
// request.
const (
	maxCEL      = 4096
	maxCELDepth = 24
)

// CheckCEL checks that all supported Envoy versions accept an expression of the Common Expression Language (CEL). The
// expression must be well-formed, and call only functions that all these versions have. CheckCEL does not check the
// names of attributes, because Envoy accepts unknown ones: they have no value.
func CheckCEL(expression string) error {
	if len(expression) > maxCEL {
		return fmt.Errorf("the expression has %d characters; at most %d are allowed", len(expression), maxCEL)
	}
	tokens, err := celTokens(expression)
	if err != nil {
		return err
	}
	p := celParser{tokens: tokens}
	if err := p.expression(); err != nil {
		return err
	}
	if t := p.peek(); t.kind != celEnd {
		return fmt.Errorf("%q is not expected at this position", t.text)
	}
	return nil
}

// celParser parses an expression by recursive descent. It stores only the information that it needs to check calls.
type celParser struct {
	tokens []celToken
	depth  int
}

func (p *celParser) peek() celToken { return p.tokens[0] }

func (p *celParser) next() celToken {
	t := p.tokens[0]
	if t.kind != celEnd {
		p.tokens = p.tokens[1:]
	}
	return t
}

// accept consumes the next token and returns true if the token is one of operators.
func (p *celParser) accept(operators ...string) bool {
	if t := p.peek(); t.kind == celOperator && slices.Contains(operators, t.text) {
		p.next()
		return true
	}
	return false
}

func (p *celParser) expect(operator string) error {
	if p.accept(operator) {
		return nil
	}
	if p.peek().kind == celEnd {
		return fmt.Errorf("the expression ends where %q is expected", operator)
	}
	return fmt.Errorf("found %q, expected %q", p.peek().text, operator)
}

func (p *celParser) expression() error {
	if p.depth++; p.depth > maxCELDepth {
		return errors.New("the expression is nested too deeply")
	}
	defer func() { p.depth-- }()
	if err := p.binary(0); err != nil || !p.accept("?") {
		return err
	}
	if err := p.binary(0); err != nil {
		return err
	}
	if err := p.expect(":"); err != nil {
		return err
	}
	return p.expression()
}

// celOperators lists the binary operators by increasing precedence.
var celOperators = [][]string{
	{"||"}, {"&&"}, {"<", "<=", ">", ">=", "==", "!=", "in"}, {"+", "-"}, {"*", "/", "%"},
}

func (p *celParser) binary(level int) error {
	if level == len(celOperators) {
		return p.unary()
	}
	for {
		if err := p.binary(level + 1); err != nil {
			return err
		}
		if !p.accept(celOperators[level]...) {
			return nil
		}
	}
}

func (p *celParser) unary() error {
	for p.accept("!") || p.accept("-") {
	}
	return p.member()
}

func (p *celParser) member() error {
	err := p.primary()
	for err == nil {
		switch {
		case p.accept("."):
			name := p.next()
			if name.kind != celName {
				return fmt.Errorf("%q is not the name of a field", name.text)
			}
			if p.peek().kind == celOperator && p.peek().text == "(" {
				err = p.call(true, name.text)
			}
		case p.accept("["):
			if err = p.expression(); err == nil {
				err = p.expect("]")
			}
		default:
			return nil
		}
	}
	return err
}

// primary parses a literal, a name, a list, a map or an expression in parentheses.
func (p *celParser) primary() error {
	switch t := p.next(); {
	case t.kind == celLiteral:
		return nil
	case t.kind == celName:
		if p.peek().kind == celOperator && p.peek().text == "(" {
			return p.call(false, t.text)
		}
		return nil
	case t.kind == celEnd:
		return errors.New("the expression ends where a value is expected")
	case t.text == "(":
		if err := p.expression(); err != nil {
			return err
		}
		return p.expect(")")
	case t.text == "[":
		return p.list("]", p.expression)
	case t.text == "{":
		return p.list("}", p.entry)
	default:
		return fmt.Errorf("found %q, expected a value", t.text)
	}
}

func (p *celParser) entry() error {
	if err := p.expression(); err != nil {
		return err
	}
	if err := p.expect(":"); err != nil {
		return err
	}
	return p.expression()
}

func (p *celParser) list(end string, item func() error) error {
	if p.accept(end) {
		return nil
	}
	for {
		if err := item(); err != nil {
			return err
		}
		if !p.accept(",") {
			return p.expect(end)
		}
	}
}

// call parses the arguments of a call. It checks that the function or method called name exists and accepts them.
func (p *celParser) call(method bool, name string) error {
	if err := p.expect("("); err != nil {
		return err
	}
	var arguments [][]celToken
	err := p.list(")", func() error {
		before := p.tokens
		err := p.expression()
		arguments = append(arguments, before[:len(before)-len(p.tokens)])
		return err
	})
	if err != nil {
		return err
	}
	return checkCELCall(method, name, arguments)
}

// celFunctions maps each function that all supported Envoy versions have to the numbers of arguments that it accepts.
// Names with a dot are methods of a value. Envoy has neither string() nor the list macros (all, exists, map, filter).
var celFunctions = map[string][]int{
	"size": {1}, "int": {1}, "uint": {1}, "double": {1}, "bytes": {1}, "type": {1}, "duration": {1},
	"timestamp": {1}, "matches": {2}, "has": {1}, "dyn": {1},
	".size": {0}, ".contains": {1}, ".startsWith": {1}, ".endsWith": {1}, ".matches": {1},
	".getFullYear": {0, 1}, ".getMonth": {0, 1}, ".getDate": {0, 1}, ".getDayOfMonth": {0, 1}, ".getDayOfWeek": {0, 1},
	".getDayOfYear": {0, 1}, ".getHours": {0, 1}, ".getMinutes": {0, 1}, ".getSeconds": {0, 1}, ".getMilliseconds": {0, 1},
}

func checkCELCall(method bool, name string, arguments [][]celToken) error {
	key := name
	if method {
		key = "." + name
	}
	counts, known := celFunctions[key]
	switch {
	case !known:
		return fmt.Errorf("proxies have no function %s", name)
	case !slices.Contains(counts, len(arguments)):
		return fmt.Errorf("%s does not accept %d arguments", name, len(arguments))
	}
	return checkCELArguments(name, arguments)
}

func checkCELArguments(name string, arguments [][]celToken) error {
	switch name {
	case "has":
		if a := arguments[0]; len(a) < 3 || a[len(a)-1].kind != celName || a[len(a)-2].text != "." {
			return errors.New("has() needs a field, as in has(request.useragent)")
		}
	case "matches":
		if a := arguments[len(arguments)-1]; len(a) == 1 && a[0].kind == celLiteral && a[0].value != "" {
			return checkCELRegex(a[0].value)
		}
	}
	return nil
}

// maxCELProgram is Envoy's limit for the compiled size of a regular expression inside an expression.
const maxCELProgram = 100

func checkCELRegex(expression string) error {
	if err := checkRegex(expression); err != nil {
		return fmt.Errorf("matches(): not a regular expression: %w", err)
	}
	if parsed, err := syntax.Parse(expression, syntax.Perl); err != nil || programSize(parsed) > maxCELProgram {
		return errors.New("matches(): the regular expression exceeds Envoy's size limit: use startsWith, endsWith or contains")
	}
	return nil
}

// celRoots lists the attributes that Envoy provides, by the first part of their names.
var celRoots = []string{
	"request", "response", "connection", "upstream", "source", "destination", "metadata", "filter_state", "upstream_filter_state",
	"plugin_name", "plugin_root_id", "plugin_vm_id", "node", "cluster_name", "cluster_metadata", "listener_direction",
	"listener_metadata", "route_name", "route_metadata", "upstream_host_metadata", "xds",
}

// unknownCELRoot returns the first name in expression that is not an attribute of Envoy. It returns "" if all names are
// attributes, or if expression is invalid.
func unknownCELRoot(expression string) string {
	tokens, err := celTokens(expression)
	if err != nil {
		return ""
	}
	for i, t := range tokens {
		follows := i > 0 && tokens[i-1].kind == celOperator && tokens[i-1].text == "."
		called := i+1 < len(tokens) && tokens[i+1].kind == celOperator && tokens[i+1].text == "("
		if t.kind == celName && !follows && !called && !slices.Contains(celRoots, t.text) {
			return t.text
		}
	}
	return ""
}
