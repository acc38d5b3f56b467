// Package kernel asks the kernel over netlink, by sockets that block: the kernel works on a request while it is being
// sent, and has its answer ready when that returns, so that there is nothing to wait for. A socket that the runtime polls
// costs a wake-up of another thread for each answer, several times of what most requests take.
package kernel
