package dns

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/regularfile"
)

const (
	maxResolvConfBytes = 64 << 10
	maxResolvers       = 8
	maxSearchDomains   = 32
	// checkEvery is the minimum interval between two checks of the file. Queries trigger the checks, so that an idle
	// server uses no CPU time.
	checkEvery = time.Second
)

// resolvConf contains the supported settings of a resolv.conf.
type resolvConf struct {
	servers []netip.AddrPort
	search  []string // fully qualified, lower case
	ndots   int
	rotate  bool
	useTCP  bool
}

// parseResolvConf parses a resolv.conf. It ignores unknown lines, as resolvers do. If there are several "search" or
// "domain" lines, the last one applies.
func parseResolvConf(text []byte) resolvConf {
	conf := resolvConf{ndots: 1}
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, maxResolvConfBytes+1)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 2 {
			continue
		}
		switch fields[0] {
		case "nameserver":
			if server, ok := parseServer(fields[1]); ok && len(conf.servers) < maxResolvers {
				conf.servers = append(conf.servers, server)
			}
		case "search", "domain":
			conf.search = searchDomains(fields[1:])
		case "options":
			conf.options(fields[1:])
		}
	}
	return conf
}

// parseServer parses the address of a resolver, with an optional port. The port is an extension of pilotfish.
func parseServer(text string) (netip.AddrPort, bool) {
	if ip, err := netip.ParseAddr(text); err == nil {
		return netip.AddrPortFrom(ip, 53), true
	}
	server, err := netip.ParseAddrPort(text)
	return server, err == nil
}

func searchDomains(fields []string) []string {
	var domains []string
	for _, field := range fields {
		if name, ok := canonical(field); ok && len(domains) < maxSearchDomains {
			domains = append(domains, name)
		}
	}
	return domains
}

func (c *resolvConf) options(fields []string) {
	for _, field := range fields {
		switch {
		case field == "rotate":
			c.rotate = true
		case field == "use-vc":
			c.useTCP = true
		case strings.HasPrefix(field, "ndots:"):
			if n, err := strconv.Atoi(field[len("ndots:"):]); err == nil && n >= 0 {
				c.ndots = min(n, 15)
			}
		}
	}
}

func (c resolvConf) equal(o resolvConf) bool {
	return slices.Equal(c.servers, o.servers) && slices.Equal(c.search, o.search) &&
		c.ndots == o.ndots && c.rotate == o.rotate && c.useTCP == o.useTCP
}

// confFile reads a resolv.conf when it changes. If the file becomes unreadable or contains no resolver, the last
// configuration remains in use.
type confFile struct {
	path string
	// changed is called with the first configuration and with each different one.
	changed func(resolvConf)

	nextCheck atomic.Int64 // Unix time of the next check, in nanoseconds
	mu        sync.Mutex
	seen      fs.FileInfo // of the file that was read last
	last      resolvConf
	err       error // of the last attempt to read the file
}

// check reads the file if a check is due and the file has changed.
func (f *confFile) check(now time.Time) {
	due := f.nextCheck.Load()
	wait := due - now.UnixNano()
	if wait > 0 && wait <= int64(checkEvery) { // a larger value means that the clock was set back
		return
	}
	if !f.nextCheck.CompareAndSwap(due, now.Add(checkEvery).UnixNano()) {
		return // another goroutine is checking the file
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	info, err := os.Stat(f.path)
	if err == nil && f.seen != nil && os.SameFile(info, f.seen) && info.ModTime().Equal(f.seen.ModTime()) && info.Size() == f.seen.Size() {
		return
	}
	conf, err := readResolvConf(f.path)
	if err != nil {
		f.err = err
		return
	}
	f.err, f.seen = nil, info
	if !conf.equal(f.last) {
		f.last = conf
		f.changed(conf)
	}
}

// problem returns the error of the last attempt to read the file, or nil.
func (f *confFile) problem() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err
}

func readResolvConf(path string) (resolvConf, error) {
	file, _, err := regularfile.Open(path)
	if err != nil {
		return resolvConf{}, fmt.Errorf("reading the list of resolvers: %w", err)
	}
	defer func() { _ = file.Close() }()
	text, err := io.ReadAll(io.LimitReader(file, maxResolvConfBytes))
	if err != nil {
		return resolvConf{}, fmt.Errorf("reading the list of resolvers: %w", err)
	}
	conf := parseResolvConf(text)
	if len(conf.servers) == 0 {
		return resolvConf{}, fmt.Errorf("%s does not contain a resolver; add a line such as \"nameserver 10.96.0.10\"", path)
	}
	return conf, nil
}
