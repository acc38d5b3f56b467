// Package netns creates unnamed network namespaces. When this process and the processes in a namespace have ended, even
// by SIGKILL, the kernel removes the namespace with all links in it.
package netns
