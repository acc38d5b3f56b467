// Package phrase formats counts and lists for messages to users.
package phrase

import (
	"fmt"
	"slices"
	"strings"
)

type integer interface {
	~int | ~int32 | ~int64 | ~uint | ~uint32 | ~uint64
}

// Count returns a number with its noun, for example "1 proxy" or "2 proxies". noun is in the singular and has a regular
// plural. If it has several words, the last one is changed.
func Count[N integer](n N, noun string) string {
	if n == 1 {
		return fmt.Sprintf("1 %s", noun)
	}
	return fmt.Sprintf("%d %s", n, plural(noun))
}

func plural(noun string) string {
	stem, endsInY := strings.CutSuffix(noun, "y")
	switch {
	case endsInY && !strings.HasSuffix(stem, "a") && !strings.HasSuffix(stem, "e") && !strings.HasSuffix(stem, "o"):
		return stem + "ies"
	case strings.HasSuffix(noun, "s"), strings.HasSuffix(noun, "x"), strings.HasSuffix(noun, "ch"):
		return noun + "es"
	}
	return noun + "s"
}

// List joins items with commas. It omits empty items.
func List(items []string) string {
	return strings.Join(slices.DeleteFunc(slices.Clone(items), func(item string) bool { return item == "" }), ", ")
}

// ListFirst joins at most limit items with commas and marks the omission of others with an ellipsis.
func ListFirst(items []string, limit int) string {
	if len(items) > limit {
		return List(items[:limit]) + ", …"
	}
	return List(items)
}
