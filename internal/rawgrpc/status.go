package rawgrpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// The headers that gRPC adds to HTTP.
const (
	contentType   = "application/grpc"
	statusHeader  = "grpc-status"
	messageHeader = "grpc-message"
	kindHeader    = "content-type"
)

// value returns the value of a header field, or "".
func value(fields []hpack.HeaderField, name string) string {
	for _, f := range fields {
		if f.Name == name {
			return f.Value
		}
	}
	return ""
}

// fromHeader returns the status in trailers or trailers-only headers; ok is false if there is none.
func fromHeader(h []hpack.HeaderField) (err error, ok bool) {
	text := value(h, statusHeader)
	if text == "" {
		return nil, false
	}
	code, bad := strconv.ParseUint(text, 10, 32)
	if bad != nil {
		return status.Errorf(codes.Unknown, "the server ended the stream with the status %q", text), true
	}
	if codes.Code(code) == codes.OK {
		return nil, true
	}
	return status.Error(codes.Code(code), decoded(value(h, messageHeader))), true
}

// decoded decodes a grpc-message. It returns an invalid encoding unchanged.
func decoded(message string) string {
	if plain, err := url.PathUnescape(message); err == nil {
		return plain
	}
	return message
}

// encoded returns the encoding of a message for a header.
func encoded(message string) string {
	var b strings.Builder
	for i := range len(message) {
		if c := message[i]; c >= ' ' && c <= '~' && c != '%' {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}

// statusFields returns the trailers of a status.
func statusFields(err error) []hpack.HeaderField {
	st := status.Convert(err)
	fields := []hpack.HeaderField{{Name: statusHeader, Value: strconv.Itoa(int(st.Code()))}}
	if st.Message() != "" {
		fields = append(fields, hpack.HeaderField{Name: messageHeader, Value: encoded(st.Message())})
	}
	return fields
}

// fromResponse returns an error if the response headers are not those of gRPC.
func fromResponse(h []hpack.HeaderField) error {
	if err, ok := fromHeader(h); ok && err != nil {
		return err
	}
	if text := value(h, ":status"); text != "200" {
		code, _ := strconv.Atoi(text)
		return status.Errorf(codeOf(code), "unexpected HTTP status %s %s", text, http.StatusText(code))
	}
	if kind := value(h, kindHeader); !strings.HasPrefix(kind, contentType) {
		return status.Errorf(codes.Unknown, "the answer is not of gRPC: its content type is %q", kind)
	}
	return nil
}

// codeOf returns the gRPC code of an HTTP status
// (https://github.com/grpc/grpc/blob/master/doc/http-grpc-status-mapping.md).
func codeOf(httpStatus int) codes.Code {
	switch httpStatus {
	case http.StatusBadRequest:
		return codes.Internal
	case http.StatusUnauthorized:
		return codes.Unauthenticated
	case http.StatusForbidden:
		return codes.PermissionDenied
	case http.StatusNotFound:
		return codes.Unimplemented
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return codes.Unavailable
	}
	return codes.Unknown
}

// failure returns the status of a stream that ended without one.
func failure(ctx context.Context, err error) error {
	if ended := ctx.Err(); ended != nil {
		return status.FromContextError(ended).Err()
	}
	if _, has := status.FromError(err); has {
		return err
	}
	if reset := (http2.StreamError{}); errors.As(err, &reset) {
		return status.Errorf(codeOfReset(reset.Code), "the stream was reset with HTTP/2's %v", reset.Code)
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return status.Error(codes.Unavailable, "the connection was closed")
	}
	return status.Error(codes.Unavailable, err.Error())
}

func codeOfReset(code http2.ErrCode) codes.Code {
	switch code {
	case http2.ErrCodeRefusedStream:
		return codes.Unavailable
	case http2.ErrCodeCancel:
		return codes.Canceled
	case http2.ErrCodeEnhanceYourCalm:
		return codes.ResourceExhausted
	case http2.ErrCodeInadequateSecurity:
		return codes.PermissionDenied
	}
	return codes.Internal
}
