package xtables

import (
	"regexp"
	"strings"
	"sync"
)

// maxWords is the maximum number of words of a rule; shortenRule shortens longer rules. iptables-restore's limit is
// 255, including the words before the rule.
const maxWords = 200

var ownerWords = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(` -m owner ! (--[ug]id-owner) ([0-9]+)`) })

// shortenRule shortens a rule with more than maxWords words. For example, "not of these 64 groups" is one rule with 64 owner
// conditions. Each of them is shortened from five words to three.
func shortenRule(rule string) string {
	if strings.Count(rule, " ") < maxWords {
		return rule
	}
	return ownerWords().ReplaceAllString(rule, " -mowner ! $1=$2")
}
