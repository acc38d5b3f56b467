package check

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// otherNamespaces returns the network namespaces of which this process has an open file descriptor, and those that
// contain a process in members. It omits the namespace of this process.
func otherNamespaces(members []process) []string {
	own, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		return nil
	}
	var found []string
	for _, link := range namespaceLinks(members) {
		if ns, err := os.Readlink(link); err == nil && ns != own && strings.HasPrefix(ns, "net:") && !slices.Contains(found, ns) {
			found = append(found, ns)
		}
	}
	return found
}

// namespaceLinks returns the links in /proc for the open files of this process and the network namespaces of members.
func namespaceLinks(members []process) []string {
	links, _ := filepath.Glob("/proc/self/fd/*")
	for _, p := range members {
		links = append(links, filepath.Join("/proc", strconv.Itoa(p.pid), "ns/net"))
	}
	return links
}
