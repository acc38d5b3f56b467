package status

import "io"

// asyncWriter returns a writer whose data another goroutine writes to the destination, so that producing and writing
// run in parallel. The returned function waits until all data is written, and closes the destination.
func asyncWriter(to io.WriteCloser) (io.Writer, func()) {
	from, into := io.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, err := io.Copy(to, from)
		_ = from.CloseWithError(err)
		_ = to.Close()
	}()
	return into, func() {
		_ = into.Close()
		<-done
	}
}
