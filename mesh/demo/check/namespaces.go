package check

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// ownNamespaces are the network namespaces, beside this process's own, that it holds open or that one of the processes is
// in.
func ownNamespaces(members []process) []string {
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

// namespaceLinks are where the kernel shows which namespaces this process holds open, and which the others are in.
func namespaceLinks(members []process) []string {
	links, _ := filepath.Glob("/proc/self/fd/*")
	for _, p := range members {
		links = append(links, filepath.Join("/proc", strconv.Itoa(p.pid), "ns/net"))
	}
	return links
}
