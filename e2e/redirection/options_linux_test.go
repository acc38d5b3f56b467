package redirection

import "slices"

// Flags that many sets share.
var (
	star   = []string{"istio-inbound-ports=*", "istio-service-cidr=*"}
	dual   = []string{"dual-stack=true"}
	tproxy = []string{"istio-inbound-interception-mode=TPROXY"}
	dns    = []string{"redirect-dns=true", "capture-all-dns=true"}
	dnsOne = []string{"redirect-dns=true", "dns-servers=10.96.0.10,fd96::10"}
)

func flags(lists ...[]string) []string { return slices.Concat(lists...) }

// dnsAll: every DNS query of an application is redirected to the agent; the proxy's queries reach their resolver.
var dnsAll = []string{
	"app ??p resolver*:53", "dns", "app ??p localhost:53", "dns", "app ??p own:53", "dns", "app ??p loop5:53", "dns",
	"second ??p *:53", "dns", "group ??p *:53", "dns",
	"proxy tcp own:53", "app", "uid tcp own:53", "app", "gid tcp own:53", "app",
}

// dnsListed: the same, for the listed resolver only.
var dnsListed = []string{
	"app ??p resolver:53", "dns", "second ??p resolver:53", "dns", "group ??p resolver:53", "dns",
	"proxy tcp own:53", "app", "uid tcp own:53", "app", "gid tcp own:53", "app",
}

// dnsMachine: the virtual machine's queries are redirected to the agent too, if it listens for them.
var dnsMachine = []string{"machine tcp *", "outbound", "machine ??p resolver*:53", "dns"}

// secondProxy: user 2000 is also a proxy.
var secondProxy = []string{
	"second tcp mesh:80", "peer", "second tcp resolver:53", "peer", "second tcp own:80", "inbound",
	"second tcp own:53", "inbound", "second udp resolver:53", "peer",
}

// refusedMachine: forwarded traffic is not inbound, and is refused only on virtual interfaces.
var refusedMachine = []string{"v6 machine tcp mesh:*", "peer", "v6 machine tcp other:80", "peer", "v6 machine tcp resolver:53", "peer"}

// sets are the tested sets of options. Each replaces the one before it.
var sets = []options{
	{name: "no option", flags: dual},
	{name: "everything", flags: flags(star, dual), in: true, out: true},
	{name: "everything, IPv4 alone", flags: star, in: true, out: true, ipv6: "pass"},
	{name: "everything, IPv6 refused", flags: flags(star, []string{"ipv6=reject"}), in: true, out: true, ipv6: "refuse", exceptions: refusedMachine},
	{name: "everything, IPv6 captured", flags: flags(star, []string{"ipv6=capture"}), in: true, out: true},
	{name: "IPv6 by addresses: both", flags: flags(star, []string{"addresses=10.55.0.1,fd55::1"}), in: true, out: true, ipv6: "pass"},
	{name: "IPv6 by addresses: the other order", flags: flags(star, []string{"addresses=fd55::1,10.55.0.1"}), in: true, out: true, ipv6: "pass"},
	{name: "IPv6 by addresses: IPv6 alone", flags: flags(star, []string{"addresses=127.0.0.1,fe80::1,fd55::1"}), in: true, out: true},
	{name: "inbound alone", flags: flags(dual, []string{"istio-inbound-ports=*"}), in: true},
	{name: "outbound alone", flags: flags(dual, []string{"istio-service-cidr=*"}), out: true},
	{name: "inbound ports listed", flags: flags(dual, []string{"istio-inbound-ports=80,8080", "istio-service-cidr=*"}), out: true,
		exceptions: []string{"peer tcp own:80", "inbound", "peer tcp own:8080", "inbound", "peer tcp net1:80", "inbound", "far tcp own:80", "inbound", "round tcp own:80", "inbound", "machine tcp *:80", "inbound"}},
	{name: "inbound range", flags: flags(dual, []string{"istio-inbound-ports=8000-9000,443"}),
		exceptions: []string{"peer tcp own:8080", "inbound", "peer tcp own:443", "inbound"}},
	{name: "inbound range, the other way to write it", flags: flags(dual, []string{"istio-inbound-ports=8000:9000"}),
		exceptions: []string{"peer tcp own:8080", "inbound"}},
	{name: "inbound tunnel port listed", flags: flags(dual, []string{"istio-inbound-ports=15008,80"}),
		exceptions: []string{"peer tcp *:80", "inbound", "far tcp own:80", "inbound", "round tcp own:80", "inbound", "machine tcp *:80", "inbound"}},
	{name: "inbound exclusions", flags: flags(star, dual, []string{"istio-local-exclude-ports=22,15020,15021,15090"}), in: true, out: true,
		exceptions: []string{"peer tcp own:22", "app", "peer tcp own:1502?", "app", "peer tcp own:15090", "app"}},
	{name: "inbound exclusion of a range", flags: flags(star, dual, []string{"istio-local-exclude-ports=15000-15100"}), in: true, out: true,
		exceptions: []string{"peer tcp own:1502?", "app", "peer tcp own:15090", "app", "peer tcp own:15001", "outbound"}},
	{name: "inbound exclusions from a list", flags: flags(dual, []string{"istio-inbound-ports=443,8080", "istio-local-exclude-ports=8080"}),
		exceptions: []string{"peer tcp own:443", "inbound", "peer tcp own:8080", "inbound"}},
	{name: "destinations listed", flags: flags(dual, []string{"istio-inbound-ports=*", "istio-service-cidr=10.60.0.0/16,fd60::/16"}), in: true,
		exceptions: []string{"app tcp mesh:*", "outbound", "second tcp mesh:80", "outbound", "group tcp mesh:80", "outbound"}},
	{name: "one destination", flags: flags(dual, []string{"istio-service-cidr=10.70.0.1/32,fd70::1/128"}),
		exceptions: []string{"app tcp other:*", "outbound"}},
	{name: "destinations of IPv4 alone", flags: flags(dual, []string{"istio-service-cidr=10.70.0.0/16"}),
		exceptions: []string{"v4 app tcp other:*", "outbound"}},
	{name: "destinations excluded", flags: flags(star, dual, []string{"istio-service-exclude-cidr=10.70.0.0/16,fd70::/16"}), in: true, out: true,
		exceptions: []string{"app tcp other:*", "peer"}},
	{name: "destinations excluded from a list", flags: flags(dual, []string{"istio-service-cidr=10.0.0.0/8", "istio-service-exclude-cidr=10.70.0.0/16,10.96.0.10/32"}),
		exceptions: []string{"v4 app tcp mesh:*", "outbound", "v4 app tcp outside:80", "outbound", "v4 app tcp through1:80", "outbound", "v4 app tcp resolver2:53", "outbound",
			"v4 second tcp mesh:80", "outbound", "v4 group tcp mesh:80", "outbound"}},
	{name: "destinations with loopback", flags: flags(dual, []string{"istio-service-cidr=127.0.0.0/8,10.60.0.0/16"}),
		exceptions: []string{"v4 app tcp mesh:*", "outbound", "v4 app tcp loop5:*", "outbound", "v4 second tcp mesh:80", "outbound", "v4 group tcp mesh:80", "outbound"}},
	{name: "outbound ports", flags: flags(dual, []string{"istio-outbound-ports=3306,440-450"}),
		exceptions: []string{"app tcp *:3306", "outbound", "app tcp mesh:443", "outbound"}},
	{name: "outbound ports, destinations excluded", flags: flags(dual, []string{"istio-outbound-ports=3306", "istio-service-exclude-cidr=10.70.0.0/16,fd70::/16"}),
		exceptions: []string{"app tcp mesh:3306", "outbound"}},
	{name: "outbound ports excluded", flags: flags(star, dual, []string{"istio-local-outbound-ports-exclude=22,3306"}), in: true, out: true,
		exceptions: []string{"app tcp *:3306", "peer", "app tcp *:22", "peer"}},
	{name: "outbound range excluded", flags: flags(star, dual, []string{"istio-local-outbound-ports-exclude=3000-4000,80"}), in: true, out: true,
		exceptions: []string{"app tcp *:3306", "peer", "* tcp mesh:80", "peer", "app tcp other:80", "peer", "app tcp outside:80", "peer", "app tcp through1:80", "peer",
			"proxy tcp own:80", "app", "proxy tcp net1:80", "app", "proxy tcp loop5:80", "app", "uid tcp own:80", "app", "gid tcp own:80", "app",
			"machine tcp mesh:80", "inbound"}},
	{name: "outbound ports both ways", flags: flags(dual, []string{"istio-outbound-ports=443,3306", "istio-local-outbound-ports-exclude=3306"}),
		exceptions: []string{"app tcp mesh:443", "outbound"}},
	{name: "second interface excluded", flags: flags(star, dual, []string{"istio-exclude-interfaces=net1"}), in: true, out: true,
		exceptions: []string{"peer tcp net1:80", "app", "app tcp through1:80", "peer"}},
	{name: "first interface excluded", flags: flags(star, dual, []string{"istio-exclude-interfaces=eth0"}), in: true, out: true,
		exceptions: []string{"app tcp mesh:*", "peer", "app tcp o*:*", "peer", "app tcp own:*", "app", "app tcp own:15008", "tunnel", "app tcp resolver*:53", "peer",
			"second tcp [mr]*", "peer", "group tcp [mr]*", "peer", "peer tcp own:*", "app", "peer tcp own:15?08", "tunnel", "peer tcp own:15001", "outbound",
			"far tcp own:80", "app", "round tcp own:80", "app"}},
	{name: "virtual machine", flags: flags(star, dual, []string{"kube-virt-interfaces=vif0"}), in: true, out: true,
		exceptions: []string{"machine tcp *", "outbound"}},
	{name: "virtual machine, exclusions", flags: flags(star, dual, []string{"kube-virt-interfaces=vif0", "istio-service-exclude-cidr=10.70.0.0/16,fd70::/16",
		"istio-local-outbound-ports-exclude=3306"}), in: true, out: true,
		exceptions: []string{"machine tcp *", "outbound", "machine tcp other:80", "peer", "machine tcp mesh:3306", "peer", "app tcp other:80", "peer", "app tcp *:3306", "peer"}},
	{name: "virtual machine, destinations listed", flags: flags(dual, []string{"istio-inbound-ports=*", "istio-service-cidr=10.60.0.0/16,fd60::/16", "kube-virt-interfaces=vif0"}), in: true,
		exceptions: []string{"* tcp mesh:*", "outbound", "proxy tcp mesh:*", "peer", "?id tcp mesh:80", "peer", "machine tcp other:80", "peer", "machine tcp resolver:53", "peer", "machine tcp virtual:80", "app"}},
	{name: "virtual machine, IPv6 refused", flags: flags(star, []string{"ipv6=reject", "kube-virt-interfaces=vif0"}), in: true, out: true, ipv6: "refuse",
		exceptions: []string{"machine tcp *", "outbound"}},
	{name: "two users", flags: flags(star, dual, []string{"proxy-uid=1337,2000"}), in: true, out: true, exceptions: secondProxy},
	{name: "two users, the other order", flags: flags(star, dual, []string{"proxy-uid=2000,1337"}), in: true, out: true, exceptions: secondProxy},
	{name: "another user, the group stays", flags: flags(star, dual, []string{"proxy-uid=3000", "proxy-gid=1337"}), in: true, out: true,
		exceptions: []string{"uid tcp mesh:80", "outbound", "uid tcp resolver:53", "outbound", "uid tcp own:80", "app", "uid tcp own:53", "app"}},
	{name: "two groups", flags: flags(star, dual, []string{"proxy-gid=1337,11"}), in: true, out: true,
		exceptions: []string{"group tcp mesh:80", "peer", "group tcp resolver:53", "peer", "group tcp own:*", "inbound"}},
	{name: "one group captured", flags: flags(star, dual, []string{"ISTIO_OUTBOUND_OWNER_GROUPS=11,12"}), in: true,
		exceptions: []string{"group tcp mesh:80", "outbound", "group tcp resolver:53", "outbound"}},
	{name: "one group excluded", flags: flags(star, dual, []string{"ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE=11"}), in: true, out: true,
		exceptions: []string{"group tcp mesh:80", "peer", "group tcp resolver:53", "peer"}},
	{name: "DNS", flags: flags(star, dual, dns), in: true, out: true, exceptions: dnsAll},
	{name: "DNS, IPv4 alone", flags: flags(star, dns), in: true, out: true, exceptions: dnsAll, ipv6: "pass"},
	{name: "DNS, IPv6 refused", flags: flags(star, dns, []string{"ipv6=reject"}), in: true, out: true, ipv6: "refuse", exceptions: flags(dnsAll, refusedMachine)},
	{name: "DNS alone", flags: flags(dual, dns), exceptions: dnsAll},
	{name: "DNS of one resolver", flags: flags(star, dual, dnsOne), in: true, out: true, exceptions: dnsListed},
	{name: "DNS of one resolver alone", flags: flags(dual, dnsOne), exceptions: dnsListed},
	{name: "DNS of one resolver, of IPv4", flags: flags(star, dual, []string{"redirect-dns=true", "dns-servers=10.96.0.10"}), in: true, out: true,
		exceptions: []string{"v4 app ??p resolver:53", "dns", "v4 second ??p resolver:53", "dns", "v4 group ??p resolver:53", "dns",
			"proxy tcp own:53", "app", "uid tcp own:53", "app", "gid tcp own:53", "app"}},
	{name: "DNS of one group", flags: flags(star, dual, dns, []string{"ISTIO_OUTBOUND_OWNER_GROUPS=11"}), in: true,
		exceptions: []string{"group tcp mesh:80", "outbound", "group ??p *:53", "dns", "proxy tcp own:53", "app", "?id tcp own:53", "app"}},
	{name: "DNS, a group excluded", flags: flags(star, dual, dns, []string{"ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE=11"}), in: true, out: true,
		exceptions: flags(dnsAll, []string{"group tcp mesh:80", "peer", "group ??p resolver:53", "peer", "group tcp own:53", "app"})},
	{name: "DNS, its port excluded", flags: flags(star, dual, dns, []string{"istio-local-outbound-ports-exclude=53"}), in: true, out: true,
		exceptions: []string{"* tcp resolver*:53", "peer", "* tcp own:53", "app", "peer tcp own:53", "inbound", "machine tcp resolver:53", "inbound"}},
	{name: "DNS, virtual machine", flags: flags(star, dual, dns, []string{"kube-virt-interfaces=vif0"}), in: true, out: true,
		exceptions: flags(dnsAll, []string{"machine tcp *", "outbound"})},
	{name: "DNS, virtual machine, resolver open", flags: flags(star, dual, dns, []string{"kube-virt-interfaces=vif0", "DNS_PROXY_ADDR=:15053"}), in: true, out: true,
		exceptions: flags(dnsAll, dnsMachine)},
	{name: "DNS of one resolver, virtual machine, resolver open", flags: flags(star, dual, dnsOne, []string{"kube-virt-interfaces=vif0", "DNS_PROXY_ADDR=:15053"}), in: true, out: true,
		exceptions: flags(dnsListed, []string{"machine tcp *", "outbound", "machine ??p resolver:53", "dns"})},
	{name: "DNS, virtual machine, IPv6 refused, resolver open for IPv4", flags: flags(star, dns, []string{"ipv6=reject", "kube-virt-interfaces=vif0", "DNS_PROXY_ADDR=0.0.0.0:15053"}),
		in: true, out: true, ipv6: "refuse", exceptions: flags(dnsAll, dnsMachine)},
	{name: "DNS, virtual machine, resolver open for IPv4 alone", flags: flags(star, dual, dns, []string{"kube-virt-interfaces=vif0", "DNS_PROXY_ADDR=0.0.0.0:15053"}), in: true, out: true,
		exceptions: flags(dnsAll, []string{"machine tcp *", "outbound"})},
	{name: "TPROXY, DNS, virtual machine, resolver open", flags: flags(star, dual, tproxy, dns, []string{"kube-virt-interfaces=vif0", "DNS_PROXY_ADDR=[::]:15053"}), in: true, out: true,
		exceptions: flags(dnsAll, dnsMachine), transparent: true},
	{name: "DNS, two users", flags: flags(star, dual, dns, []string{"proxy-uid=1337,2000"}), in: true, out: true,
		exceptions: flags(dnsAll, secondProxy, []string{"second tcp own:53", "app"})},
	{name: "DNS, another user, the group stays", flags: flags(star, dual, dns, []string{"proxy-uid=3000", "proxy-gid=1337"}), in: true, out: true,
		exceptions: flags(dnsAll, []string{"uid tcp mesh:80", "outbound", "uid ??p resolver:53", "dns", "uid tcp own:80", "app", "uid tcp own:53", "dns"})},
	{name: "DNS, another group, the user stays", flags: flags(star, dual, dns, []string{"proxy-uid=1337", "proxy-gid=3000"}), in: true, out: true,
		exceptions: flags(dnsAll, []string{"gid tcp mesh:80", "outbound", "gid ??p resolver:53", "dns", "gid tcp own:80", "app", "gid tcp own:53", "dns"})},
	{name: "virtual machine, exclusions, IPv6 refused", flags: flags(star, []string{"ipv6=reject", "kube-virt-interfaces=vif0", "istio-service-exclude-cidr=10.57.0.0/16,fd57::/16"}),
		in: true, out: true, ipv6: "refuse", exceptions: []string{"machine tcp *", "outbound", "machine tcp virtual:80", "app", "v6 machine tcp virtual:80", "app"}},
	{name: "invalid packets dropped", flags: flags(star, dual, []string{"drop-invalid=true"}), in: true, out: true},
	{name: "all of loopback is the application's", flags: flags(star, dual, []string{"ISTIO_OUTBOUND_IPV4_LOOPBACK_CIDR=127.0.0.0/8"}), in: true, out: true,
		exceptions: []string{"proxy tcp loop5:80", "app"}},
	{name: "other ports", flags: flags(star, dual, dns, []string{"envoy-port=15101", "inbound-capture-port=15106", "inbound-tunnel-port=15108", "dns-port=15153"}),
		in: true, out: true, exceptions: flags(dnsAll, []string{"proxy tcp own:15008", "inbound", "?id tcp own:15008", "inbound", "peer tcp own:15008", "inbound",
			"proxy tcp own:15108", "tunnel", "peer tcp own:15108", "tunnel"})},
	{name: "TPROXY", flags: flags(star, dual, tproxy), in: true, out: true, transparent: true},
	{name: "TPROXY, IPv4 alone", flags: flags(star, tproxy), in: true, out: true, ipv6: "pass", transparent: true},
	{name: "TPROXY, IPv6 refused", flags: flags(star, tproxy, []string{"ipv6=reject"}), in: true, out: true, ipv6: "refuse", exceptions: refusedMachine, transparent: true},
	{name: "TPROXY, DNS", flags: flags(star, dual, tproxy, dns), in: true, out: true, exceptions: dnsAll, transparent: true},
	{name: "TPROXY, ports listed", flags: flags(dual, tproxy, []string{"istio-inbound-ports=80,8080,20443", "istio-service-cidr=*"}), out: true, transparent: true,
		exceptions: []string{"peer tcp own:80", "inbound", "peer tcp own:8080", "inbound", "peer tcp net1:80", "inbound", "far tcp own:80", "inbound", "round tcp own:80", "inbound", "machine tcp *:80", "inbound",
			"proxy tcp own:15108", "tunnel", "proxy tcp own:53", "app", "?id tcp own:53", "app"}},
	{name: "TPROXY, exclusions", flags: flags(star, dual, tproxy, []string{"istio-local-exclude-ports=22,3306,15020-15090"}), in: true, out: true, transparent: true,
		exceptions: []string{"peer tcp own:22", "app", "peer tcp own:1502?", "app", "peer tcp own:15090", "app", "machine tcp mesh:3306", "peer"}},
	{name: "TPROXY, second interface excluded", flags: flags(star, dual, tproxy, []string{"istio-exclude-interfaces=net1"}), in: true, out: true, transparent: true,
		exceptions: []string{"peer tcp net1:80", "app", "app tcp through1:80", "peer"}},
	{name: "TPROXY, two users", flags: flags(star, dual, tproxy, []string{"proxy-uid=1337,2000"}), in: true, out: true, exceptions: secondProxy, transparent: true},
	{name: "TPROXY, another mark and table", flags: flags(star, dual, tproxy, []string{"istio-inbound-tproxy-mark=0x777", "istio-inbound-tproxy-route-table=200"}),
		in: true, out: true, transparent: true},
	{name: "TPROXY, virtual machine, invalid packets dropped", flags: flags(star, dual, tproxy, []string{"kube-virt-interfaces=vif0", "drop-invalid=true"}),
		in: true, out: true, exceptions: []string{"machine tcp *", "outbound"}, transparent: true},
	{name: "TPROXY, virtual machine, exclusions", flags: flags(star, dual, tproxy, []string{"kube-virt-interfaces=vif0", "istio-service-exclude-cidr=10.70.0.0/16,fd70::/16",
		"istio-local-outbound-ports-exclude=3306"}), in: true, out: true, transparent: true,
		exceptions: []string{"machine tcp *", "outbound", "machine tcp other:80", "peer", "machine tcp mesh:3306", "peer", "app tcp other:80", "peer", "app tcp *:3306", "peer"}},
	{name: "TPROXY, second interface virtual", flags: flags(star, dual, tproxy, []string{"kube-virt-interfaces=net1"}), in: true, out: true, transparent: true,
		exceptions: []string{"peer tcp net1:80", "outbound"}},
	{name: "TPROXY without inbound", flags: flags(dual, tproxy, []string{"istio-service-cidr=*"}), out: true, transparent: true,
		exceptions: []string{"proxy tcp own:*", "app", "proxy tcp own:15?08", "tunnel", "proxy tcp net1:80", "app", "proxy tcp loop5:80", "app", "?id tcp own:80", "app", "?id tcp own:53", "app"}},
	{name: "everything again", flags: flags(star, dual), in: true, out: true},
}
