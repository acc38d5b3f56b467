// Package early hands the command iptables to the small binary beside this one. The agent links gRPC and Envoy's types,
// whose initialization takes longer than all that the command does, and as much memory again; Go initializes a package as
// soon as those that it imports are, in the order of their paths, so that this one, which imports syscall alone, comes
// before nearly all. (With os, its turn would come after protocol buffers.) Without the small binary the agent does the
// work itself.
package early

import "syscall"

// small is the binary of the command.
const small = "pilotfish-iptables"

func init() {
	args, is := redirection(arguments())
	self := executable()
	if !is || self == "" {
		return
	}
	_ = syscall.Exec(folder(self)+small, append([]string{small}, args...), syscall.Environ())
}

// most is what the kernel takes of one argument (MAX_ARG_STRLEN of linux/binfmts.h), and more than all usually have.
const most = 128 << 10

// arguments are those of the process, as os has them when it is there. More than fit are none: the agent does the work.
func arguments() []string {
	fd, err := syscall.Open("/proc/self/cmdline", syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer func() { _ = syscall.Close(fd) }()
	var first [4096]byte
	text := first[:0]
	for len(text) < most {
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

// split separates strings that each end with a zero byte.
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

// executable is the path of the binary that runs.
func executable() string {
	var path [4096]byte
	n, err := syscall.Readlink("/proc/self/exe", path[:])
	if err != nil || n == len(path) {
		return ""
	}
	return string(path[:n])
}

// folder is a path without what is behind its last slash, and base is that.
func folder(path string) string { return path[:len(path)-len(base(path))] }

func base(path string) string {
	for i := len(path) - 1; i >= 0; i-- {
		if path[i] == '/' {
			return path[i+1:]
		}
	}
	return path
}

// redirection gives the arguments of the command, if that is what is asked for: by the first argument, or by the name of
// the program.
func redirection(args []string) (rest []string, is bool) {
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
