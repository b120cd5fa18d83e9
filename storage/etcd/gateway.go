package etcd

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/etcdserverpb/gw"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	election "go.etcd.io/etcd/server/v3/etcdserver/api/v3election/v3electionpb/gw"
	lock "go.etcd.io/etcd/server/v3/etcdserver/api/v3lock/v3lockpb/gw"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// The gateway makes gRPC's calls of JSON, by etcd's own package. It makes them over a connection
// that leads to its own server, so it opens no other store than that: see inside. Clients are
// admitted where connections come in, for HTTP as for gRPC.
//
// All that clients make it hold is bounded beside what the calls hold in the server:
//
//   - Few requests are read at a time. One that comes slowly ends when others wait, as in
//     request.go. It counts before it is read and until its call has ended, by several times its
//     size, since it is decoded and encoded again. A request of a call that lasts is small instead,
//     and does not count.
//   - A transaction has few parts: in JSON, one takes two bytes, and a hundred when it was decoded.
//   - An answer counts until it is written. If there is no room for it, it is refused. Those of
//     watches wait in the server until others are written.
//   - A client has [ServerConfig.SendTimeout] to read each piece of an answer.
//   - A call that lasts ends when its client has left, whatever that has sent; see stays.go.

const (
	// jsonTimes is about how much larger a request is in all its forms.
	jsonTimes = 6
	// answerTimes is about how much larger an answer is in all its forms: as it came, decoded, and,
	// while that is made, up to three times as JSON, where bytes are a third longer. answerEntry is
	// how much a key takes besides, decoded and with the names of its fields.
	answerTimes, answerEntry = 6, 512
)

// maxBody bounds the requests of calls that neither write nor last.
const maxBody = 64 << 10

// lasting are the paths of calls that last.
var lasting = map[string]bool{"/v3/watch": true, "/v3/lease/keepalive": true, "/v3/lock/lock": true,
	"/v3/election/campaign": true, "/v3/election/observe": true}

// Gateway serves etcd's API as JSON, at the paths /v3/. It answers to everybody who reaches it, as
// the gRPC server does, but not to pages in browsers: a browser has connections that others have
// not, and its pages belong to others.
func (s *Server) Gateway() http.Handler {
	m := runtime.NewServeMux(runtime.WithMarshalerOption(runtime.MIMEWildcard, asJSON))
	var (
		once   sync.Once
		failed error
	)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Origin") != "" {
			http.Error(w, "pages in browsers are not served: use another client",
				http.StatusForbidden)
			return
		}
		conn, err := s.connected()
		if err == nil {
			once.Do(func() { failed = register(m, conn) })
			err = failed
		}
		if err != nil {
			refuse(m, w, r, err)
			return
		}
		s.pass(m, w, r)
	})
}

// asJSON is the form that etcd gives to JSON.
var asJSON = &runtime.HTTPBodyMarshaler{Marshaler: &runtime.JSONPb{
	MarshalOptions:   protojson.MarshalOptions{UseProtoNames: true},
	UnmarshalOptions: protojson.UnmarshalOptions{DiscardUnknown: true}}}

func register(m *runtime.ServeMux, conn *grpc.ClientConn) error {
	for _, service := range []func(context.Context, *runtime.ServeMux, *grpc.ClientConn) error{
		gw.RegisterKVHandler, gw.RegisterWatchHandler, gw.RegisterLeaseHandler,
		gw.RegisterClusterHandler, gw.RegisterMaintenanceHandler, gw.RegisterAuthHandler,
		lock.RegisterLockHandler, election.RegisterElectionHandler} {
		if err := service(context.Background(), m, conn); err != nil {
			return err
		}
	}
	return nil
}

func refuse(m *runtime.ServeMux, w http.ResponseWriter, r *http.Request, err error) {
	runtime.HTTPError(r.Context(), m, asJSON, w, r, err)
}

// pass reads the request, and passes it on.
func (s *Server) pass(m *runtime.ServeMux, w http.ResponseWriter, r *http.Request) {
	if old, ok := strings.CutPrefix(r.URL.Path, "/v3beta/"); ok {
		r.URL.Path = "/v3/" + old // as in etcd, for old clients
	}
	timely := func(w http.ResponseWriter) http.ResponseWriter {
		return &timelyWriter{w, http.NewResponseController(w), s.cfg.SendTimeout}
	}
	plain := w
	w = timely(plain)
	most := s.mostBody(r.URL.Path)
	if r.ContentLength > most {
		refuse(m, w, r, rpctypes.ErrGRPCRequestTooLarge)
		return
	}
	counted := int64(0)
	if !lasting[r.URL.Path] {
		n := min(jsonTimes*most, s.bodies.ever()) // the length is not known yet
		if r.ContentLength >= 0 {
			n = jsonTimes * r.ContentLength
		}
		if !s.room(r.Context(), n) {
			return // nobody is left to be told
		}
		counted = n
		defer func() { s.bodies.add(-counted) }()
	}
	body, err := s.read(w, r, most)
	if err != nil {
		refuse(m, w, r, err)
		return
	}
	if counted > 0 {
		size := jsonTimes * int64(len(body))
		s.bodies.add(size - counted)
		counted = size
	}
	if parts := 3 * (3*s.cfg.MaxTxnOps + 1); r.URL.Path == "/v3/kv/txn" &&
		bytes.Count(body, []byte{'{'}) > parts {
		refuse(m, w, r, rpctypes.ErrGRPCTooManyOps)
		return
	}
	held := &held{answer: bill{s: s}}
	defer held.answer.pay()
	defer held.event(0)
	ctx, whole := r.Context(), false
	if lasting[r.URL.Path] && r.Method == http.MethodPost {
		if own, whileThere, err := takeOver(plain, r); err == nil {
			defer func() { own.end(whole, s.cfg.SendTimeout) }()
			ctx, w = whileThere, timely(own)
		}
	}
	r = r.WithContext(context.WithValue(ctx, heldKey{}, held))
	r.Body = io.NopCloser(bytes.NewReader(body))
	m.ServeHTTP(w, r)
	whole = true
}

// mostBody is how large a request may be.
func (s *Server) mostBody(path string) int64 {
	switch {
	case path == "/v3/kv/put", path == "/v3/kv/txn":
		return int64(s.mostRequest()) * 4 / 3 // in the base of 64
	case lasting[path]:
		return maxLastingBytes
	}
	return maxBody
}

// room waits for room for a request, before it is read. Those that come slowly give theirs up.
func (s *Server) room(ctx context.Context, bytes int64) bool {
	for ctx.Err() == nil {
		waited, cancel := context.WithTimeout(ctx, s.cfg.RequestTimeout/4)
		err := s.bodies.wait(waited, bytes)
		cancel()
		if err == nil {
			return true
		}
		s.arrivals.hurry()
	}
	return false
}

// read reads the body of a request, when few others are read.
func (s *Server) read(w http.ResponseWriter, r *http.Request, most int64) ([]byte, error) {
	deadline := http.NewResponseController(w).SetReadDeadline
	arrival, err := s.arrivals.begin(r.Context(), func() {
		_ = deadline(time.Unix(1, 0)) // or the connection is lost
	})
	if err != nil {
		return nil, err
	}
	_ = deadline(time.Now().Add(s.cfg.SendTimeout))
	body := bytes.NewBuffer(make([]byte, 0, max(r.ContentLength, 0)+bytes.MinRead))
	_, err = body.ReadFrom(http.MaxBytesReader(w, r.Body, most))
	s.arrivals.end(arrival)
	if large := (*http.MaxBytesError)(nil); errors.As(err, &large) {
		return nil, rpctypes.ErrGRPCRequestTooLarge
	}
	if err != nil {
		return nil, rpctypes.ErrGRPCCanceled
	}
	// From now on it is read ahead, to notice that the client has left.
	_ = deadline(time.Time{})
	return body.Bytes(), nil
}

// held is what the gateway holds of the answers of a call: all of it, and of a watch the response
// that is being written.
type held struct {
	answer bill
	events int64
}

// event counts a response of a watch in place of the one before.
func (h *held) event(bytes int64) {
	h.answer.s.events.add(bytes - h.events)
	h.events = bytes
}

type heldKey struct{}

// holdAnswer counts an answer until its call to the gateway ends. Only what was read is refused if
// it is too much: what was written would be written again.
func holdAnswer(ctx context.Context, method string, request, answer any, conn *grpc.ClientConn,
	invoke grpc.UnaryInvoker, o ...grpc.CallOption) error {
	err := invoke(ctx, method, request, answer, conn, o...)
	if h, ok := ctx.Value(heldKey{}).(*held); ok && err == nil {
		n := answerBytes(answer.(proto.Message))
		if method != pb.KV_Range_FullMethodName {
			h.answer.note(n)
			return nil
		}
		return h.answer.take(n)
	}
	return err
}

// holdAnswers counts each answer of a stream until the next one is asked for.
func holdAnswers(ctx context.Context, d *grpc.StreamDesc, conn *grpc.ClientConn, method string,
	open grpc.Streamer, o ...grpc.CallOption) (grpc.ClientStream, error) {
	stream, err := open(ctx, d, conn, method, o...)
	if h, ok := ctx.Value(heldKey{}).(*held); ok && err == nil {
		stream = &heldStream{stream, h}
	}
	return stream, err
}

type heldStream struct {
	grpc.ClientStream
	held *held
}

// RecvMsg implements [grpc.ClientStream].
func (s *heldStream) RecvMsg(v any) error {
	s.held.event(0)
	s.held.answer.pay()
	if err := s.ClientStream.RecvMsg(v); err != nil {
		return err
	}
	n := answerBytes(v.(proto.Message))
	switch v.(type) {
	case *pb.WatchResponse:
		s.held.event(n)
	case *pb.LeaseKeepAliveResponse:
		s.held.answer.note(n)
	default:
		return s.held.answer.take(n)
	}
	return nil
}

// answerBytes is about how much an answer takes in the gateway.
func answerBytes(m proto.Message) int64 {
	return answerTimes*int64(proto.Size(m)) + answerEntry*int64(entries(m))
}

// entries is about how many keys an answer has. One without what belongs to it is a quarter.
func entries(m proto.Message) (n int) {
	switch m := m.(type) {
	case *pb.RangeResponse:
		n = len(m.Kvs)
	case *pb.DeleteRangeResponse:
		n = len(m.PrevKvs)
	case *pb.WatchResponse:
		n = 2 * len(m.Events)
	case *pb.LeaseLeasesResponse:
		n = len(m.Leases) / 4
	case *pb.LeaseTimeToLiveResponse:
		n = len(m.Keys) / 4
	case *pb.TxnResponse:
		for _, r := range m.Responses {
			switch r := r.Response.(type) {
			case *pb.ResponseOp_ResponseRange:
				n += entries(r.ResponseRange)
			case *pb.ResponseOp_ResponseDeleteRange:
				n += entries(r.ResponseDeleteRange)
			case *pb.ResponseOp_ResponseTxn:
				n += entries(r.ResponseTxn)
			}
		}
		n += len(m.Responses)
	}
	return n + 1
}

// timelyWriter gives a client some time to read each piece of an answer.
type timelyWriter struct {
	http.ResponseWriter
	control *http.ResponseController
	each    time.Duration
}

// pieceOfAnswer is what a client has to read in that time.
const pieceOfAnswer = 64 << 10

// Write implements [io.Writer].
func (w *timelyWriter) Write(p []byte) (n int, err error) {
	for {
		_ = w.control.SetWriteDeadline(time.Now().Add(w.each)) // or it is lost, and Write says so
		wrote, err := w.ResponseWriter.Write(p[n:min(n+pieceOfAnswer, len(p))])
		if err != nil {
			panic(http.ErrAbortHandler) // or each client that is lost would be logged
		}
		if n += wrote; n == len(p) {
			return n, nil
		}
	}
}

// Flush implements [http.Flusher].
func (w *timelyWriter) Flush() {
	_ = w.control.SetWriteDeadline(time.Now().Add(w.each))
	_ = w.control.Flush()
}

// Unwrap is for [http.ResponseController].
func (w *timelyWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
