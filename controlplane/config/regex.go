package config

import (
	"errors"
	"fmt"
	"regexp"
	"regexp/syntax"
	"strconv"
	"unicode"
)

// checkRegex checks that all supported Envoy versions accept expr. The syntax is RE2, as in Go. Older versions match
// characters, as Go does. Newer versions match bytes: each byte of expr is a character, and characters above 0xff do
// not exist.
func checkRegex(expr string) error {
	byLetter, err := syntax.Parse(expr, syntax.Perl)
	if err != nil {
		return err
	}
	letters := make([]rune, len(expr))
	for i := range len(expr) {
		letters[i] = rune(expr[i])
	}
	byByte, err := syntax.Parse(string(letters), syntax.Perl)
	if err != nil {
		return err
	}
	if max(programSize(byLetter), programSize(byByte)) > maxProgram {
		return errRegexSize
	}
	return checkEscapes(expr)
}

var errRegexSize = errors.New("its compiled form exceeds Envoy's size limit")

var letterEscape = regexp.MustCompile(`^\\(?:x\{([0-9A-Fa-f]+)\}|([0-7]{3}))`)

func checkEscapes(expr string) error {
	for i := 0; i < len(expr); i++ {
		if expr[i] != '\\' {
			continue
		}
		if m := letterEscape.FindStringSubmatch(expr[i:]); m != nil {
			hex, err := strconv.ParseUint("0"+m[1], 16, 64)
			octal, _ := strconv.ParseUint("0"+m[2], 8, 64)
			if err != nil || max(hex, octal) > 0xff {
				return fmt.Errorf("%s is above \\xff, but newer proxies compare single bytes: write the character itself", m[0])
			}
		}
		i++ // skip the escaped character
	}
	return nil
}

// maxProgram is the maximum program size in the bootstrap of an agent's Envoy: re2.max_program_size.error_level.
const maxProgram = 32768

// programSize returns an upper estimate of the size of Envoy's compiled program. It adds the instructions of Go's
// program, the character ranges, and eight more for each range beyond ASCII, which RE2 compiles to byte sequences.
func programSize(parsed *syntax.Regexp) int {
	program, err := syntax.Compile(parsed.Simplify())
	if err != nil {
		return maxProgram + 1
	}
	size := 0
	for _, inst := range program.Inst {
		size++
		for i := range (len(inst.Rune) + 1) / 2 {
			size++
			if inst.Rune[min(2*i+1, len(inst.Rune)-1)] > unicode.MaxASCII {
				size += 8
			}
		}
		if inst.Op == syntax.InstRuneAny || inst.Op == syntax.InstRuneAnyNotNL {
			size += 8
		}
	}
	return size
}
