package probe

import "context"

// TCP connects to the port of s.TCP. It returns an error if the application does not accept the connection.
func (p *Prober) TCP(ctx context.Context, s Spec) error {
	ctx, cancel := s.withTimeout(ctx)
	defer cancel()
	conn, err := dial(ctx, "tcp", hostPort(s.TCP.Host, s.TCP.Port))
	if err != nil {
		return s.wrapError(ctx, err)
	}
	_ = conn.Close() // a successful connection is sufficient
	return nil
}
