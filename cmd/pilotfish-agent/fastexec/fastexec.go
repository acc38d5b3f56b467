// Package fastexec executes the pilotfish-iptables binary for the command iptables. The agent links gRPC and Envoy's
// types, whose initialization needs more time and memory than the command itself. Go initializes a package as soon as
// its imports are initialized, in the order of import paths. This package imports only syscall, so it runs before
// nearly all other packages. (With os, it would run after protocol buffers.) Without the small binary, the agent runs the
// command itself.
package fastexec

import "syscall"

// small is the name of the command's own binary.
const small = "pilotfish-iptables"

func init() {
	args, is := redirectionArgs(arguments())
	self := executable()
	if !is || self == "" {
		return
	}
	_ = syscall.Exec(folder(self)+small, append([]string{small}, args...), syscall.Environ())
}

// maxArguments is the kernel's limit for one argument (MAX_ARG_STRLEN in linux/binfmts.h). All arguments together are
// usually shorter.
const maxArguments = 128 << 10

// arguments returns the process's arguments, like os.Args. It returns nil if they are too long; the agent then runs the
// command itself.
func arguments() []string {
	fd, err := syscall.Open("/proc/self/cmdline", syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer func() { _ = syscall.Close(fd) }()
	var first [4096]byte
	text := first[:0]
	for len(text) < maxArguments {
		if len(text) == cap(text) {
			text = append(text, 0)[:len(text)]
		}
		n, err := syscall.Read(fd, text[len(text):cap(text)])
		if err == syscall.EINTR {
			continue
		}
		if err != nil {
			return nil
		}
		if n == 0 {
			return split(text)
		}
		text = text[:len(text)+n]
	}
	return nil
}

// split splits text into strings that each end with a zero byte.
func split(text []byte) (list []string) {
	from := 0
	for i, b := range text {
		if b == 0 {
			list = append(list, string(text[from:i]))
			from = i + 1
		}
	}
	return list
}

// executable returns the path of the running binary.
func executable() string {
	var path [4096]byte
	n, err := syscall.Readlink("/proc/self/exe", path[:])
	if err != nil || n == len(path) {
		return ""
	}
	return string(path[:n])
}

// folder returns a path up to its last slash, and base the rest.
func folder(path string) string { return path[:len(path)-len(base(path))] }

func base(path string) string {
	for i := len(path) - 1; i >= 0; i-- {
		if path[i] == '/' {
			return path[i+1:]
		}
	}
	return path
}

// redirectionArgs returns the arguments of the iptables command, if the first argument or the program's name selects
// it.
func redirectionArgs(args []string) (rest []string, is bool) {
	const contract = "istio-iptables"
	switch {
	case len(args) == 0:
		return nil, false
	case base(args[0]) == contract:
		return args[1:], true
	case len(args) > 1 && (args[1] == "iptables" || args[1] == contract):
		return args[2:], true
	}
	return nil, false
}
