// Package nlsocket sends netlink requests to the kernel over blocking sockets. The kernel processes a request during
// the send call, so the reply can be read immediately afterwards. With a non-blocking socket, the Go runtime's poller
// would wake another thread for each reply, which takes several times as long as most requests.
package nlsocket
