package config

import (
	"errors"
	"fmt"
	"regexp"
	"regexp/syntax"
	"strconv"
	"unicode"
)

// checkRegex checks an expression as all supported Envoys read it. The language is that of Go's, RE2; but where the older
// ones go by letters, as Go does, the newer go by bytes: for them every byte of the expression is a letter, and there are
// none beyond 0xff.
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

var errRegexSize = errors.New("it is too large for a proxy when it is compiled")

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
				return fmt.Errorf("%s is beyond \\xff, and newer proxies compare bytes: write the letter itself", m[0])
			}
		}
		i++ // what is escaped escapes nothing
	}
	return nil
}

// maxProgram is how large an expression an agent's Envoy takes: re2.max_program_size.error_level in its bootstrap.
const maxProgram = 32768

// programSize estimates from above how many instructions Envoy makes of an expression: one for each of Go's, one for each
// range of letters, and several for a range beyond ASCII, which is one of sequences of bytes.
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
