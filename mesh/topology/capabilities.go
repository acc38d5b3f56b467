package topology

import (
	"slices"
	"strings"
)

// defaultCapabilities are the capabilities of applications in a mesh with redirection. They are the defaults of
// container runtimes without NET_RAW, which permits packets that bypass the redirection, and without MKNOD, which
// permits access to any device.
var defaultCapabilities = []string{
	"CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP", "NET_BIND_SERVICE", "SYS_CHROOT", "AUDIT_WRITE", "SETFCAP",
}

// capabilityNames lists the names of Linux capabilities, without CAP_. The index is the capability's number
// (capabilities(7)).
var capabilityNames = []string{
	"CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP", "LINUX_IMMUTABLE",
	"NET_BIND_SERVICE", "NET_BROADCAST", "NET_ADMIN", "NET_RAW", "IPC_LOCK", "IPC_OWNER", "SYS_MODULE", "SYS_RAWIO", "SYS_CHROOT", "SYS_PTRACE",
	"SYS_PACCT", "SYS_ADMIN", "SYS_BOOT", "SYS_NICE", "SYS_RESOURCE", "SYS_TIME", "SYS_TTY_CONFIG", "MKNOD", "LEASE", "AUDIT_WRITE",
	"AUDIT_CONTROL", "SETFCAP", "MAC_OVERRIDE", "MAC_ADMIN", "SYSLOG", "WAKE_ALARM", "BLOCK_SUSPEND", "AUDIT_READ", "PERFMON", "BPF",
	"CHECKPOINT_RESTORE",
}

// Capabilities returns the numbers of the capabilities to which the workload's application is limited.
func (w *Workload) Capabilities() []uintptr {
	var numbers []uintptr
	for _, name := range slices.Concat(defaultCapabilities, w.AddCapabilities) {
		numbers = append(numbers, uintptr(slices.Index(capabilityNames, name)))
	}
	return numbers
}

// capabilities reads the names of capabilities. Both NET_RAW and CAP_NET_RAW are valid.
func (v value) capabilities(into *[]string) {
	for _, item := range v.list() {
		var name string
		item.string(&name)
		name = strings.TrimPrefix(name, "CAP_")
		if !slices.Contains(capabilityNames, name) {
			item.problem("write a name of capabilities(7), such as NET_RAW", "not a capability")
			continue
		}
		*into = append(*into, name)
	}
}
