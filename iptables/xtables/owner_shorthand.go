package xtables

import (
	"regexp"
	"strings"
	"sync"
)

// maxWords is less than iptables-restore's limit for one rule (255 words), to leave room for the words before the
// rule.
const maxWords = 200

var ownerWords = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(` -m owner ! (--[ug]id-owner) ([0-9]+)`) })

// shortenRule shortens a rule that has too many words: "none of 64 groups" is one rule, with a condition for each group.
func shortenRule(rule string) string {
	if strings.Count(rule, " ") < maxWords {
		return rule
	}
	return ownerWords().ReplaceAllString(rule, " -mowner ! $1=$2")
}
