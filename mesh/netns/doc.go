// Package netns creates unnamed network namespaces. The kernel removes each namespace, with all links in it, when this
// process and the processes in it have ended, even after SIGKILL.
package netns
