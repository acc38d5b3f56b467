package status

import "io"

// besides has another goroutine write, so that making the next piece and writing the last one share the processors.
func besides(to io.WriteCloser) (io.Writer, func()) {
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
