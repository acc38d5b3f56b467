package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// chunk is the text between two document markers.
type chunk struct {
	text []byte
	line int // number of lines in the file before text
}

// splitDocuments splits data, the content of a file, at its document markers. An invalid document then does not affect
// other ones. A line that begins with three dashes is always a marker, even inside a block scalar.
func splitDocuments(data []byte) []chunk {
	data = bytes.TrimPrefix(data, []byte("\ufeff"))
	var chunks []chunk
	start, startLine := 0, 0
	add := func(end int) {
		if text := data[start:end]; !isBlank(text) {
			chunks = append(chunks, chunk{text: text, line: startLine})
		}
	}
	for at, line := 0, 0; at < len(data); line++ {
		end := len(data)
		if i := bytes.IndexByte(data[at:], '\n'); i >= 0 {
			end = at + i + 1
		}
		if isMarker(data[at:end]) {
			add(at)
			start, startLine = at, line
		}
		at = end
	}
	add(len(data))
	return chunks
}

func isMarker(line []byte) bool {
	rest, ok := bytes.CutPrefix(line, []byte("---"))
	return ok && (len(rest) == 0 || bytes.ContainsRune([]byte(" \t\r\n"), rune(rest[0])))
}

// isBlank reports whether a chunk contains only comments, markers and directives.
func isBlank(text []byte) bool {
	for line := range bytes.Lines(text) {
		if isMarker(line) {
			line = line[3:]
		}
		line = bytes.TrimSpace(line)
		if len(line) > 0 && line[0] != '#' && line[0] != '%' && !bytes.Equal(line, []byte("...")) {
			return false
		}
	}
	return true
}

// readYAML returns the documents of a chunk. There are several if the chunk contains "..." markers.
func readYAML(text []byte) ([]*yaml.Node, error) {
	var nodes []*yaml.Node
	for dec := yaml.NewDecoder(bytes.NewReader(text)); ; {
		var node yaml.Node
		err := dec.Decode(&node)
		if errors.Is(err, io.EOF) {
			return nodes, nil
		}
		if err != nil {
			return nodes, err
		}
		if node.Kind == yaml.DocumentNode && len(node.Content) == 1 {
			nodes = append(nodes, node.Content[0])
		}
	}
}

var yamlErrorLine = regexp.MustCompile(`^yaml: (?:line (\d+): )?(.*)$`)

// syntaxProblem returns a problem that explains why a chunk is not YAML.
func syntaxProblem(c chunk, err error) Problem {
	p := Problem{Message: err.Error(), Remedy: "fix the syntax; the other documents of the file are read"}
	if m := yamlErrorLine.FindStringSubmatch(err.Error()); m != nil {
		p.At.Line, _ = strconv.Atoi(m[1])
		p.Message = "not YAML: " + explainYAMLError(m[2])
	}
	if line, column := findTab(c.text); line > 0 {
		p.At.Line, p.At.Column = line, column
		p.Message, p.Remedy = "not YAML: a tab in the indentation", "indent with spaces"
	} else if line := findSyntaxErrorLine(c.text); line > 0 {
		p.At.Line = line
	}
	// A problem must not quote the content of a Secret.
	if p.At.Line > 0 && !mayBeSecret(string(c.text)) {
		p.Value = textLine(c.text, p.At.Line)
	}
	p.At.Line = max(p.At.Line, 1) + c.line
	if strings.Contains(p.Message, "control characters") {
		p.Remedy = "remove the character, with an editor that shows invisible characters"
	}
	return p
}

// mayBeSecret reports whether text, which cannot be parsed, may contain a Secret, possibly with a misspelt kind.
func mayBeSecret(text string) bool {
	text = strings.ToLower(text)
	return strings.Contains(text, "secret") || strings.Contains(text, "private key") || strings.Contains(text, "tls.key")
}

// explainYAMLError translates the parser's messages for the most common mistakes.
func explainYAMLError(message string) string {
	for words, plain := range map[string]string{
		"did not find expected key":                      "the indentation does not fit the lines before",
		"did not find expected '-' indicator":            "a field among the items of a list: the indentation does not fit the lines before",
		"mapping values are not allowed in this context": "a colon where no field can begin: indent it like its neighbours, or put the text in quotes",
		"could not find expected ':'":                    "a line has no colon: a field needs a colon after its name",
		"did not find expected ',' or ']'":               "a list in brackets is not closed",
		"did not find expected ',' or '}'":               "fields in braces are not closed",
		"found unexpected end of stream":                 "a quote is not closed",
		"found character that cannot start any token":    "a value cannot begin with this character: put the text in quotes",
	} {
		if strings.Contains(message, words) {
			return plain
		}
	}
	return message
}

// findTab returns the position of a tab in the indentation, where YAML permits only spaces.
func findTab(text []byte) (line, column int) {
	n := 0
	for l := range bytes.Lines(text) {
		n++
		indent := l[:len(l)-len(bytes.TrimLeft(l, " \t"))]
		if i := bytes.IndexByte(indent, '\t'); i >= 0 && len(bytes.TrimSpace(l)) > 0 {
			return n, i + 1
		}
	}
	return 0, 0
}

// findSyntaxErrorLine returns the first line that makes the text invalid. The line in the parser's message is often
// only the beginning of the enclosing list or mapping. findSyntaxErrorLine returns 0 if no line does, or if the text is
// too long to search.
func findSyntaxErrorLine(text []byte) int {
	const maxLines, maxBytes = 200, 64 << 10
	if len(text) > maxBytes {
		return 0
	}
	ends := []int{0}
	for i, b := range text {
		if b == '\n' {
			ends = append(ends, i+1)
		}
	}
	if len(ends) > maxLines {
		return 0
	}
	for lines := len(ends) - 1; lines >= 0; lines-- {
		if _, err := readYAML(text[:ends[lines]]); err == nil {
			return lines + 1
		}
	}
	return 0
}

func textLine(text []byte, number int) string {
	n := 0
	for l := range bytes.Lines(text) {
		if n++; n == number {
			return shorten(string(bytes.TrimSpace(l)))
		}
	}
	return ""
}

// shorten truncates a value that a message quotes to 80 characters.
func shorten(value string) string {
	const maxCharacters = 80
	if utf8.RuneCountInString(value) <= maxCharacters {
		return value
	}
	return fmt.Sprintf("%s…", string([]rune(value)[:maxCharacters]))
}
