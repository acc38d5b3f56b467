package probe

import "context"

// TCP makes a probe that has s.TCP: the port takes a connection, or the error says why not.
func (p *Prober) TCP(ctx context.Context, s Spec) error {
	ctx, cancel := s.within(ctx)
	defer cancel()
	conn, err := dial(ctx, "tcp", hostPort(s.TCP.Host, s.TCP.Port))
	if err != nil {
		return s.failed(ctx, err)
	}
	_ = conn.Close() // it was there to be made
	return nil
}
