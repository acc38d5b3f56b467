package ca

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	securityv1 "istio.io/api/security/v1alpha1"
)

const (
	// callTimeout limits the duration of a call, from its headers to its response.
	callTimeout = 10 * time.Second
	// maxPendingCalls and maxPendingCallsPerCaller limit the calls that are processed at the same time, in total and
	// for one client. Other calls wait.
	maxPendingCalls          = 256
	maxPendingCallsPerCaller = 32
)

// RegisterTo adds the certificate service to a gRPC server. The server must use TLS, because it receives tokens, and
// must limit the size of a request (grpc.MaxRecvMsgSize).
//
// RegisterTo registers CreateCertificate as a stream, so that the handler can authenticate the client before it reads
// the request. gRPC would read the request of a unary call before the handler runs. On the wire, both are the same.
func (a *Authority) RegisterTo(s grpc.ServiceRegistrar) {
	s.RegisterService(&grpc.ServiceDesc{
		ServiceName: securityv1.IstioCertificateService_ServiceDesc.ServiceName,
		HandlerType: (*securityv1.IstioCertificateServiceServer)(nil),
		Streams: []grpc.StreamDesc{{
			StreamName: "CreateCertificate", ClientStreams: true,
			Handler: func(_ any, stream grpc.ServerStream) error { return a.serveCall(stream) },
		}},
	}, a)
}

// serveCall authenticates a client by the call's headers and the connection's certificate. It then reads the request
// and responds to it.
func (a *Authority) serveCall(stream grpc.ServerStream) error {
	ctx, cancel := context.WithTimeout(stream.Context(), callTimeout)
	defer cancel()
	caller, proof, err := a.authenticateCaller(ctx)
	if err != nil {
		return err
	}
	release, err := a.calls.acquire(ctx, caller)
	if err != nil {
		return status.Error(codes.ResourceExhausted, "too many certificate requests at the same time: try again")
	}
	defer release()
	req, err := receiveRequest(ctx, stream)
	if err != nil {
		return err
	}
	answer, err := a.answerCall(ctx, caller, proof, req)
	if err != nil {
		return err
	}
	return stream.SendMsg(answer)
}

// receiveRequest reads the request of the call. It returns when ctx ends, even if the read is still blocked: gRPC ends
// the read when the handler of the call returns.
func receiveRequest(ctx context.Context, stream grpc.ServerStream) (*securityv1.IstioCertificateRequest, error) {
	req := &securityv1.IstioCertificateRequest{}
	received := make(chan error, 1)
	go func() { received <- stream.RecvMsg(req) }()
	select {
	case err := <-received:
		return req, err
	case <-ctx.Done():
		return nil, status.Errorf(codes.DeadlineExceeded, "the client did not send a complete request within %s", callTimeout)
	}
}

// callLimit limits the concurrent calls of one client and of all clients.
type callLimit struct {
	all *semaphore.Weighted

	mu       sync.Mutex
	byCaller map[Identity]*callerLimit
}

type callerLimit struct {
	*semaphore.Weighted
	users int // calls that have a slot or wait for one; protected by callLimit.mu
}

func newCallLimit() *callLimit {
	return &callLimit{all: semaphore.NewWeighted(maxPendingCalls), byCaller: map[Identity]*callerLimit{}}
}

// acquire waits for one of the slots of caller, and then for one of the slots that all clients share. release frees
// both. It returns an error if ctx ends first.
func (l *callLimit) acquire(ctx context.Context, caller Identity) (release func(), err error) {
	l.mu.Lock()
	own := l.byCaller[caller]
	if own == nil {
		own = &callerLimit{Weighted: semaphore.NewWeighted(maxPendingCallsPerCaller)}
		l.byCaller[caller] = own
	}
	own.users++
	l.mu.Unlock()
	leave := func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if own.users--; own.users == 0 {
			delete(l.byCaller, caller)
		}
	}
	if err := own.Acquire(ctx, 1); err != nil {
		leave()
		return nil, err
	}
	if err := l.all.Acquire(ctx, 1); err != nil {
		own.Release(1)
		leave()
		return nil, err
	}
	return func() {
		l.all.Release(1)
		own.Release(1)
		leave()
	}, nil
}
