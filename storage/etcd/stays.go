package etcd

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"time"
)

// stays is the connection of a call of the gateway that lasts, and how it is answered.
//
// net/http finds that a client has left by reading on behind the request, as far as the next byte.
// If one comes, such as a line break behind the request, it hears nothing of the client any more. A
// call that has nothing to tell would never end then. So calls that last take over their
// connection, and read it to its end.
type stays struct {
	conn   net.Conn
	buf    *bufio.ReadWriter
	header http.Header
	// chunked: the client knows HTTP/1.1. body is nil until the header was written. It collects
	// what is written until it is flushed, as net/http does: some clients take each chunk for a
	// message.
	chunked bool
	body    *bufio.Writer
	read    chan struct{}
}

// takeOver takes over the connection of a request that was read. The context ends when the client
// has left, or has sent more than any client does. It fails where there are other requests on the
// connection (HTTP/2): there, each of them is known to end.
func takeOver(w http.ResponseWriter, r *http.Request) (*stays, context.Context, error) {
	conn, buf, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return nil, nil, err
	}
	ctx, left := context.WithCancel(r.Context())
	s := &stays{conn: conn, buf: buf, header: http.Header{}, chunked: r.ProtoAtLeast(1, 1),
		read: make(chan struct{})}
	go func() {
		defer close(s.read)
		defer left()
		_, _ = io.CopyN(io.Discard, buf.Reader, maxLastingBytes) // it ends in any case
	}()
	return s, ctx, nil
}

// Header implements [http.ResponseWriter].
func (s *stays) Header() http.Header { return s.header }

// WriteHeader implements [http.ResponseWriter].
func (s *stays) WriteHeader(code int) {
	if s.body != nil {
		return
	}
	s.header.Set("Date", time.Now().UTC().Format(http.TimeFormat))
	s.header.Set("Connection", "close")
	for _, name := range []string{"Content-Length", "Trailer", "Transfer-Encoding"} {
		s.header.Del(name)
	}
	s.body = s.buf.Writer
	if s.chunked {
		s.header.Set("Transfer-Encoding", "chunked")
		s.body = bufio.NewWriter(httputil.NewChunkedWriter(s.buf))
	}
	// What cannot be written is found when it is flushed.
	_, _ = fmt.Fprintf(s.buf, "HTTP/1.1 %d %s\r\n", code, http.StatusText(code))
	_ = s.header.Write(s.buf)
	_, _ = s.buf.WriteString("\r\n")
}

// Write implements [io.Writer].
func (s *stays) Write(p []byte) (int, error) {
	s.WriteHeader(http.StatusOK)
	return s.body.Write(p)
}

// FlushError is for [http.ResponseController].
func (s *stays) FlushError() error {
	s.WriteHeader(http.StatusOK)
	if err := s.body.Flush(); err != nil {
		return err
	}
	return s.buf.Flush()
}

// SetWriteDeadline is for [http.ResponseController].
func (s *stays) SetWriteDeadline(t time.Time) error { return s.conn.SetWriteDeadline(t) }

// end ends the answer, if it is whole, and closes the connection.
func (s *stays) end(whole bool, within time.Duration) {
	if whole {
		_ = s.SetWriteDeadline(time.Now().Add(within))
		s.WriteHeader(http.StatusOK)
		_ = s.body.Flush()
		if s.chunked {
			_, _ = s.buf.WriteString("0\r\n\r\n")
		}
		_ = s.buf.Flush()
	}
	_ = s.conn.Close()
	<-s.read
}
