package archtest

import (
	"path/filepath"
	"regexp"
	"testing"
)

// sleepCopy matches a function that only waits until a time has passed or its context ends.
var sleepCopy = regexp.MustCompile(`(?s)func (\([^)]*\) )?\w+\(ctx context\.Context, \w+ time\.Duration\)[^\n]* \{\n` +
	`(\t\w+ := time\.NewTimer\(\w+\)\n\tdefer \w+\.Stop\(\)\n)?` +
	`\tselect \{\n(\tcase <-(\w+\.C|time\.After\(\w+\)|ctx\.Done\(\)):\n(\t\treturn[^\n]*\n)?){2}\t\}\n`)

func TestOnlyBackoffSleepsUntilContextEnds(t *testing.T) {
	for _, file := range sources(t, ".go") {
		copies := sleepCopy.FindAllString(readRepositoryFile(t, file), -1)
		if want := file == filepath.Join("internal", "backoff", "sleep.go"); want != (len(copies) == 1) || len(copies) > 1 {
			t.Errorf("%s: call backoff.Sleep instead of defining %q", file, copies)
		}
	}
}
