package xt

import (
	"regexp"
	"strings"
	"sync"
)

// manyWords is below what iptables-restore takes of one rule (255 words), with room for what stands before the rule.
const manyWords = 200

var ownerWords = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(` -m owner ! (--[ug]id-owner) ([0-9]+)`) })

// brief says a rule of too many words with fewer: "none of 64 groups" is one rule, with a condition for each group.
func brief(rule string) string {
	if strings.Count(rule, " ") < manyWords {
		return rule
	}
	return ownerWords().ReplaceAllString(rule, " -mowner ! $1=$2")
}
