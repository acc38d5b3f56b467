// Package fastexec replaces the agent process by the pilotfish-iptables binary if the command is iptables. The agent
// links gRPC and Envoy's types, whose initialization needs more time and memory than the command. This package runs
// before they are initialized: Go initializes packages in the order of their import paths, each after its imports, and
// this package imports only syscall. If it imported os, it would run after the initialization of protocol buffers. If
// the pilotfish-iptables binary is not in the agent's directory, the command iptables searches it in PATH.
package fastexec

import "syscall"

// small is the name of the small binary that contains only the iptables command.
const small = "pilotfish-iptables"

func init() {
	args := redirectionArgs(arguments())
	self := executable()
	if args == nil || self == "" {
		return
	}
	_ = syscall.Exec(folder(self)+small, args, syscall.Environ())
}

// maxArguments is the maximum total length of the arguments in bytes. Its value is the kernel's limit for one argument
// (MAX_ARG_STRLEN in linux/binfmts.h). Command lines are usually shorter.
const maxArguments = 128 << 10

// arguments returns the arguments of this process, like os.Args. It returns nil if they are longer than maxArguments; the
// command iptables then executes the binary.
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

// executable returns the path of the running binary, or "" on an error.
func executable() string {
	var path [4096]byte
	n, err := syscall.Readlink("/proc/self/exe", path[:])
	if err != nil || n == len(path) {
		return ""
	}
	return string(path[:n])
}

// folder returns the part of path up to and including its last slash. base returns the part after the slash.
func folder(path string) string { return path[:len(path)-len(base(path))] }

func base(path string) string {
	for i := len(path) - 1; i >= 0; i-- {
		if path[i] == '/' {
			return path[i+1:]
		}
	}
	return path
}

// redirectionArgs returns the arguments with which to execute the iptables binary. It returns nil if neither the
// program's name nor the first argument in args selects the command iptables. Its first result is the command as the
// user called it, which messages contain.
func redirectionArgs(args []string) []string {
	const istioName = "istio-iptables"
	switch {
	case len(args) == 0:
		return nil
	case base(args[0]) == istioName:
		return append([]string{istioName}, args[1:]...)
	case len(args) > 1 && (args[1] == "iptables" || args[1] == istioName):
		return append([]string{base(args[0]) + " " + args[1]}, args[2:]...)
	}
	return nil
}
