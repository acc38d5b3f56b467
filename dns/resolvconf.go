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

	"github.com/pilotfish-mesh/pilotfish/internal/plainfile"
)

const (
	mostResolvConfBytes = 64 << 10
	mostResolvers       = 8
	mostSearchDomains   = 32
	// checkEvery is how often the file is looked at, and only while there are questions: nothing wakes up for it.
	checkEvery = time.Second
)

// resolvConf is what a resolv.conf says, as far as it matters here.
type resolvConf struct {
	servers []netip.AddrPort
	search  []string // fully qualified, lower case
	ndots   int
	rotate  bool
	useTCP  bool
}

// parseResolvConf passes over what it does not understand, as resolvers do. As with them, the last of several "search"
// and "domain" lines counts.
func parseResolvConf(text []byte) resolvConf {
	conf := resolvConf{ndots: 1}
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, mostResolvConfBytes+1)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 2 {
			continue
		}
		switch fields[0] {
		case "nameserver":
			if server, ok := parseServer(fields[1]); ok && len(conf.servers) < mostResolvers {
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

// parseServer also takes an address with a port, which is ours alone.
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
		if name, ok := canonical(field); ok && len(domains) < mostSearchDomains {
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

// confFile follows the file. Once it was read, it being away or empty changes nothing.
type confFile struct {
	path string
	// changed is called with each content that is another one, the first among them.
	changed func(resolvConf)

	due  atomic.Int64 // when to look next, in nanoseconds of the clock
	mu   sync.Mutex
	seen fs.FileInfo
	last resolvConf
	err  error
}

// look reads the file if it is time for it and it has changed.
func (f *confFile) look(now time.Time) {
	due := f.due.Load()
	wait := due - now.UnixNano()
	if wait > 0 && wait <= int64(checkEvery) { // a longer one is of a clock that was put back since
		return
	}
	if !f.due.CompareAndSwap(due, now.Add(checkEvery).UnixNano()) {
		return // another does it
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

func (f *confFile) problem() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err
}

func readResolvConf(path string) (resolvConf, error) {
	file, _, err := plainfile.Open(path)
	if err != nil {
		return resolvConf{}, fmt.Errorf("reading the list of resolvers: %w", err)
	}
	defer func() { _ = file.Close() }()
	text, err := io.ReadAll(io.LimitReader(file, mostResolvConfBytes))
	if err != nil {
		return resolvConf{}, fmt.Errorf("reading the list of resolvers: %w", err)
	}
	conf := parseResolvConf(text)
	if len(conf.servers) == 0 {
		return resolvConf{}, fmt.Errorf("%s names no resolver; add a line such as \"nameserver 10.96.0.10\"", path)
	}
	return conf, nil
}
