// Package gotemplate executes Go templates whose data are plain values: maps, lists, strings, numbers and booleans.
//
// It parses templates with text/template/parse and executes them itself. text/template calls methods by names that are
// known only at run time, so with it the linker cannot remove any method of any type. That would make the program half
// as large again (9 MB, in every pod).
//
// It behaves as text/template, with these differences. Methods cannot be called. The use of an unknown name is an
// error, instead of "<no value>". Strings from the data are escaped as in JSON, because templates of JSON quote them.
// The results of functions are not escaped.
package gotemplate

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/template/parse"

	"github.com/pilotfish-mesh/pilotfish/internal/suggest"
)

const (
	// maxInput, maxOutput and maxSteps limit the cost of a template.
	maxInput  = 1 << 20
	maxOutput = 4 << 20
	maxSteps  = 1 << 20
	maxDepth  = 100     // maximum nesting of templates
	stepBytes = 1 << 10 // bytes of a function's result that are counted as one step
)

// Func is a function that a template can call. The template writes a result of type Raw verbatim, and escapes a string.
type Func func(args ...any) (any, error)

// Raw is text that is written without escaping.
type Raw string

// IsTemplate reports whether a text contains a template action ({{ … }}).
func IsTemplate(text string) bool { return strings.Contains(text, "{{") }

// HasOptions reports whether a text refers to template options. It is stricter than IsTemplate, because YAML may also
// contain "{{".
func HasOptions(text string) bool {
	return slices.ContainsFunc([]string{"{{ .", "{{.", "{{-", "{{ if", "{{if"}, func(mark string) bool { return strings.Contains(text, mark) })
}

// Execute executes a template with data as its dot and returns the output. The name is used in errors. Templates can
// call the specified functions, those of text/template, and those of the sprig library that bootstraps use.
func Execute(name, text string, data map[string]any, functions map[string]Func) (string, error) {
	if len(text) > maxInput {
		return "", fmt.Errorf("%s has %d bytes; a template may have at most %d", name, len(text), maxInput)
	}
	all := maps.Clone(builtins)
	maps.Copy(all, functions)
	trees, err := parseAll(name, text, all)
	if err != nil {
		return "", err
	}
	r := &run{functions: all, trees: trees, vars: []variable{{"$", data}}}
	err = r.list(trees[name].Root, data)
	if err != nil {
		return "", fmt.Errorf("%s:%d: %w", name, r.line(text), err)
	}
	return r.out.String(), nil
}

func parseAll(name, text string, functions map[string]Func) (map[string]*parse.Tree, error) {
	known := make(map[string]any, len(functions)+2)
	for f := range functions {
		known[f] = f
	}
	for _, f := range lazy {
		known[f] = f
	}
	trees := map[string]*parse.Tree{}
	if _, err := parse.New(name).Parse(text, "", "", trees, known); err != nil {
		return nil, errors.New(strings.TrimPrefix(err.Error(), "template: "))
	}
	if trees[name] == nil || trees[name].Root == nil {
		return nil, fmt.Errorf("%s: the template is empty", name)
	}
	return trees, nil
}

// lazy contains the functions (and, or) whose later arguments are evaluated only if the earlier ones do not determine
// the result.
var lazy = []string{"and", "or"}

type variable struct {
	name  string
	value any
}

// run is the state of one execution.
type run struct {
	functions map[string]Func
	trees     map[string]*parse.Tree
	vars      []variable
	out       strings.Builder
	steps     int
	depth     int
	at        parse.Pos
}

// Errors that implement {{break}} and {{continue}}.
var (
	errBreak    = errors.New("{{break}} outside of a {{range}}")
	errContinue = errors.New("{{continue}} outside of a {{range}}")
)

// line returns the number of the current line.
func (r *run) line(text string) int { return 1 + strings.Count(text[:min(int(r.at), len(text))], "\n") }

func (r *run) list(list *parse.ListNode, dot any) error {
	if list == nil {
		return nil
	}
	for _, n := range list.Nodes {
		if err := r.node(n, dot); err != nil {
			return err
		}
	}
	return nil
}

func (r *run) step(at parse.Pos) error {
	r.at = at
	if r.steps++; r.steps > maxSteps {
		return fmt.Errorf("the template needs more than %d steps", maxSteps)
	}
	return nil
}

func (r *run) write(text string) error {
	if r.out.Len()+len(text) > maxOutput {
		return fmt.Errorf("the output of the template exceeds %d bytes", maxOutput)
	}
	r.out.WriteString(text)
	return nil
}

func (r *run) node(n parse.Node, dot any) error {
	if err := r.step(n.Position()); err != nil {
		return err
	}
	switch n := n.(type) {
	case *parse.TextNode:
		return r.write(string(n.Text))
	case *parse.ActionNode:
		return r.action(n, dot)
	case *parse.IfNode:
		return r.branch(&n.BranchNode, dot, false)
	case *parse.WithNode:
		return r.branch(&n.BranchNode, dot, true)
	case *parse.RangeNode:
		return r.loop(n, dot)
	case *parse.TemplateNode:
		return r.template(n, dot)
	case *parse.CommentNode:
		return nil
	case *parse.BreakNode:
		return errBreak
	case *parse.ContinueNode:
		return errContinue
	}
	return fmt.Errorf("%s is not supported", n)
}

func (r *run) action(n *parse.ActionNode, dot any) error {
	value, err := r.pipe(n.Pipe, dot)
	if err != nil || len(n.Pipe.Decl) > 0 {
		return err
	}
	return r.write(formatOutput(value))
}

func (r *run) branch(n *parse.BranchNode, dot any, with bool) error {
	defer r.popVariables(len(r.vars))
	value, err := r.pipe(n.Pipe, dot)
	switch {
	case err != nil:
		return err
	case !isTrue(value):
		return r.list(n.ElseList, dot)
	case with:
		return r.list(n.List, value)
	}
	return r.list(n.List, dot)
}

// popVariables removes the variables that a block declared.
func (r *run) popVariables(n int) { r.vars = r.vars[:n] }

func (r *run) loop(n *parse.RangeNode, dot any) error {
	defer r.popVariables(len(r.vars))
	value, err := r.value(n.Pipe, dot)
	if err != nil {
		return err
	}
	entries, err := entriesOf(value)
	if err != nil {
		return err
	}
	if len(entries) == 0 {
		return r.list(n.ElseList, dot)
	}
	for _, e := range entries {
		err := r.round(n, e)
		if errors.Is(err, errBreak) {
			return nil
		}
		if err != nil && !errors.Is(err, errContinue) {
			return err
		}
	}
	return nil
}

func (r *run) round(n *parse.RangeNode, e entry) error {
	defer r.popVariables(len(r.vars))
	for i, v := range n.Pipe.Decl {
		value := e.value
		if len(n.Pipe.Decl) == 2 && i == 0 {
			value = e.key
		}
		if n.Pipe.IsAssign {
			if err := r.assign(v.Ident[0], value); err != nil {
				return err
			}
			continue
		}
		r.vars = append(r.vars, variable{v.Ident[0], value})
	}
	return r.list(n.List, e.value)
}

func (r *run) template(n *parse.TemplateNode, dot any) error {
	tree := r.trees[n.Name]
	if tree == nil {
		return fmt.Errorf("template %q is not defined", n.Name)
	}
	if r.depth++; r.depth > maxDepth {
		return fmt.Errorf("template %q includes itself too many times", n.Name)
	}
	defer func() { r.depth-- }()
	var data any
	if n.Pipe != nil {
		var err error
		if data, err = r.pipe(n.Pipe, dot); err != nil {
			return err
		}
	}
	outer := r.vars
	r.vars = []variable{{"$", data}}
	defer func() { r.vars = outer }()
	return r.list(tree.Root, data)
}

// pipe returns the value of a pipeline, and declares or sets its variables.
func (r *run) pipe(p *parse.PipeNode, dot any) (any, error) {
	value, err := r.value(p, dot)
	if err != nil {
		return nil, err
	}
	for _, v := range p.Decl {
		if !p.IsAssign {
			r.vars = append(r.vars, variable{v.Ident[0], value})
		} else if err := r.assign(v.Ident[0], value); err != nil {
			return nil, err
		}
	}
	return value, nil
}

func (r *run) assign(name string, value any) error {
	for i := len(r.vars) - 1; i >= 0; i-- {
		if r.vars[i].name == name {
			r.vars[i].value = value
			return nil
		}
	}
	return fmt.Errorf("variable %s is not declared", name)
}

// value evaluates the commands of a pipeline. Each result is the last argument of the next command.
func (r *run) value(p *parse.PipeNode, dot any) (value any, err error) {
	var before []any
	for _, c := range p.Cmds {
		if value, err = r.command(c, dot, before); err != nil {
			return nil, err
		}
		before = []any{value}
	}
	return value, nil
}

func (r *run) command(c *parse.CommandNode, dot any, before []any) (any, error) {
	if err := r.step(c.Pos); err != nil {
		return nil, err
	}
	if name, ok := c.Args[0].(*parse.IdentifierNode); ok {
		return r.call(name.Ident, c.Args[1:], dot, before)
	}
	if len(c.Args) > 1 || len(before) > 0 {
		return nil, fmt.Errorf("%s is not a function and accepts no arguments", c.Args[0])
	}
	return r.argument(c.Args[0], dot)
}

func (r *run) call(name string, args []parse.Node, dot any, before []any) (any, error) {
	if slices.Contains(lazy, name) {
		return r.evalLogical(name, args, dot, before)
	}
	values := make([]any, 0, len(args)+len(before))
	for _, a := range args {
		v, err := r.argument(a, dot)
		if err != nil {
			return nil, err
		}
		values = append(values, v)
	}
	value, err := r.functions[name](append(values, before...)...)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	size := sizeOf(value, maxOutput)
	if r.steps += size / stepBytes; size >= maxOutput {
		return nil, fmt.Errorf("%s: the result exceeds %d bytes", name, maxOutput)
	}
	return value, nil
}

// evalLogical evaluates "and" and "or". It returns the first argument that determines the result, or the last one.
func (r *run) evalLogical(name string, args []parse.Node, dot any, before []any) (value any, err error) {
	for _, a := range args {
		if value, err = r.argument(a, dot); err != nil || isTrue(value) == (name == "or") {
			return value, err
		}
	}
	if len(before) > 0 {
		value = before[0]
	}
	return value, nil
}

func (r *run) argument(n parse.Node, dot any) (any, error) {
	switch n := n.(type) {
	case *parse.DotNode:
		return dot, nil
	case *parse.FieldNode:
		return r.field(n.Ident, dot, n.Pos)
	case *parse.VariableNode:
		return r.variable(n)
	case *parse.ChainNode:
		value, err := r.argument(n.Node, dot)
		if err != nil {
			return nil, err
		}
		return r.field(n.Field, value, n.Pos)
	case *parse.PipeNode:
		return r.pipe(n, dot)
	case *parse.IdentifierNode:
		return r.call(n.Ident, nil, dot, nil)
	case *parse.StringNode:
		return Raw(n.Text), nil
	case *parse.BoolNode:
		return n.True, nil
	case *parse.NilNode:
		return nil, nil
	case *parse.NumberNode:
		if n.IsInt {
			return n.Int64, nil
		}
		if n.IsFloat {
			return n.Float64, nil
		}
	}
	return nil, fmt.Errorf("%s is not supported", n)
}

func (r *run) variable(n *parse.VariableNode) (any, error) {
	for i := len(r.vars) - 1; i >= 0; i-- {
		if r.vars[i].name == n.Ident[0] {
			return r.field(n.Ident[1:], r.vars[i].value, n.Pos)
		}
	}
	return nil, fmt.Errorf("variable %s is not declared", n.Ident[0])
}

// field resolves a chain of names in a value. It looks up each name in a map; methods are not supported.
func (r *run) field(names []string, value any, at parse.Pos) (any, error) {
	for i, name := range names {
		if value == nil {
			return nil, nil // an unset option
		}
		m, ok := value.(map[string]any)
		if !ok {
			return nil, fmt.Errorf(".%s: a %s has no fields", strings.Join(names[:i+1], "."), kind(value))
		}
		next, known := m[name]
		if !known && i == 0 && len(r.vars) > 0 && sameMap(m, r.vars[0].value) {
			r.at = at
			if meant := suggest.Name(name, slices.Sorted(maps.Keys(m))); meant != "" {
				return nil, fmt.Errorf("option .%s is not known; did you mean .%s?", name, meant)
			}
			return nil, fmt.Errorf("option .%s is not known", name)
		}
		value = next
	}
	return value, nil
}
