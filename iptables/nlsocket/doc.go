// Package nlsocket sends netlink requests to the kernel over blocking sockets. The kernel processes a request during
// the send call, so the reply is ready when that returns. A socket in the runtime's poller would wake another thread
// for each reply, which takes several times longer than most requests.
package nlsocket
