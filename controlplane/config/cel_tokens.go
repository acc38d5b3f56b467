package config

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

type celKind int

const (
	celEnd celKind = iota
	celName
	celLiteral
	celOperator
)

// celToken is one token of an expression.
type celToken struct {
	kind celKind
	text string
	// value is the content of a string literal.
	value string
}

var (
	celNamePattern   = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*`)
	celNumberPattern = regexp.MustCompile(`^(0x[0-9A-Fa-f]{1,15}u?|[0-9]+\.[0-9]+([eE][+-]?[0-9]{1,2})?|[0-9]{1,18}([eE][+-]?[0-9]{1,2}|u)?)`)
	celSigns         = []string{"||", "&&", "<=", ">=", "==", "!=", "<", ">", "+", "-", "*", "/", "%", "!", "?", ":", ".", ",", "(", ")", "[", "]", "{", "}"}
)

// celReserved holds the reserved words of CEL.
var celReserved = map[string]bool{
	"as": true, "break": true, "const": true, "continue": true, "else": true, "for": true, "function": true, "if": true,
	"import": true, "let": true, "loop": true, "package": true, "namespace": true, "return": true, "var": true, "void": true, "while": true,
}

// celTokens splits an expression into tokens. The last token has the kind celEnd.
func celTokens(text string) ([]celToken, error) {
	var out []celToken
	for {
		text = strings.TrimLeft(text, " \t\r\n\f")
		if text == "" {
			if len(out) == 0 {
				return nil, errors.New("the expression is empty")
			}
			return append(out, celToken{}), nil
		}
		token, size, err := celTokenAt(text)
		if err != nil {
			return nil, err
		}
		out = append(out, token)
		text = text[size:]
	}
}

func celTokenAt(text string) (token celToken, size int, err error) {
	if token, size, err = celString(text); size > 0 || err != nil {
		return token, size, err
	}
	if name := celNamePattern.FindString(text); name != "" {
		switch {
		case celReserved[name]:
			return token, 0, fmt.Errorf("%q is a reserved word", name)
		case name == "in":
			return celToken{kind: celOperator, text: name}, len(name), nil
		case name == "true" || name == "false" || name == "null":
			return celToken{kind: celLiteral, text: name}, len(name), nil
		}
		return celToken{kind: celName, text: name}, len(name), nil
	}
	if number := celNumberPattern.FindString(text); number != "" {
		if rest := text[len(number):]; rest != "" && (isWordByte(rest[0]) || strings.ContainsAny(number, "eE.") && rest[0] == '.') {
			return token, 0, fmt.Errorf("%q is not a number", number+rest[:1])
		}
		return celToken{kind: celLiteral, text: number}, len(number), nil
	}
	for _, sign := range celSigns {
		if strings.HasPrefix(text, sign) {
			return celToken{kind: celOperator, text: sign}, len(sign), nil
		}
	}
	return token, 0, fmt.Errorf("the character %q is not allowed in an expression", string([]rune(text)[0]))
}

func isWordByte(b byte) bool {
	return b == '_' || b >= '0' && b <= '9' || b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z'
}

// celString reads the string literal at the beginning of text. The literal must end on its line. size is 0 if text does
// not begin with a string literal.
func celString(text string) (token celToken, size int, err error) {
	start := text
	raw := false
	if rest := strings.TrimLeft(text, "rR"); len(text)-len(rest) == 1 && rest != "" && (rest[0] == '"' || rest[0] == '\'') {
		raw, text = true, rest
	}
	if text[0] != '"' && text[0] != '\'' {
		return token, 0, nil
	}
	if strings.HasPrefix(text, strings.Repeat(text[:1], 3)) {
		return token, 0, errors.New("triple-quoted text is not supported: use single quotes")
	}
	var value strings.Builder
	for i := 1; i < len(text); i++ {
		switch c := text[i]; {
		case c == text[0]:
			size := len(start) - len(text) + i + 1
			return celToken{kind: celLiteral, text: start[:size], value: value.String()}, size, nil
		case c == '\n' || c == '\r' || c == 0:
			return token, 0, errors.New("a string is not closed at the end of its line")
		case c == '\\' && !raw:
			if i++; i == len(text) {
				continue
			}
			plain, ok := celEscapes[text[i]]
			if !ok {
				return token, 0, fmt.Errorf("%s is not a supported escape sequence", strconv.Quote(text[i-1:i+1]))
			}
			value.WriteByte(plain)
		default:
			value.WriteByte(c)
		}
	}
	return token, 0, errors.New("a string is not closed")
}

// celEscapes maps the letter of each supported escape sequence to its character. Numeric escapes are not supported.
var celEscapes = map[byte]byte{
	'\\': '\\', '"': '"', '\'': '\'', '`': '`', '?': '?', 'n': '\n', 't': '\t', 'r': '\r', 'a': '\a', 'b': '\b', 'f': '\f', 'v': '\v',
}
