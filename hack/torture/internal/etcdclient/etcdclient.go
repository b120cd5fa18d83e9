// Package etcdclient uses a "rowkeeper etcd" as kube-apiserver's storage does, with the keys and
// values that it would have: a write is a transaction that compares the key's ModRevision. Each
// method is one request, but for Patch, and is never repeated.
package etcdclient

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/rowkeeper/rowkeeper/hack/torture/internal/api"
	"github.com/rowkeeper/rowkeeper/hack/torture/internal/history"
	"github.com/rowkeeper/rowkeeper/hack/torture/internal/rows"
)

// Endpoint is a "rowkeeper etcd" as clients find it.
type Endpoint struct {
	// prefix is that of all objects' keys, and bundles that of the bundles'.
	prefix, bundles string
	// Watches have a connection of their own.
	requests, watches *grpc.ClientConn
	kv                pb.KVClient
	watch             pb.WatchClient
	// pages are what the server tells by HTTP.
	pages api.Endpoint

	// mu protects recent, which has objects by their revision: each is in an answer to many.
	mu     sync.Mutex
	recent [4096]decoded
}

// decoded is an object, and what it was decoded from.
type decoded struct {
	value  []byte
	object history.Object
}

// Dial makes the clients of a server.
func Dial(address, prefix string, more ...grpc.DialOption) (*Endpoint, error) {
	e := &Endpoint{prefix: prefix + "/ci.rowkeeper.dev/", bundles: prefix + "/bundles/",
		pages: api.Endpoint{URL: "http://" + address, HTTP: &http.Client{}, Watch: &http.Client{}}}
	for _, conn := range []**grpc.ClientConn{&e.requests, &e.watches} {
		var err error
		*conn, err = grpc.NewClient("passthrough:///"+address, append(more[:len(more):len(more)],
			grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(math.MaxInt32)),
			// A server that does not answer is found out, and one that is back is found at once.
			grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second,
				Timeout: 5 * time.Second}),
			grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: 5 * time.Second,
				Backoff: backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.5,
					MaxDelay: 200 * time.Millisecond}}))...)
		if err != nil {
			e.Close()
			return nil, err
		}
	}
	e.kv, e.watch = pb.NewKVClient(e.requests), pb.NewWatchClient(e.watches)
	return e, nil
}

// Close closes the connections.
func (e *Endpoint) Close() {
	for _, conn := range []*grpc.ClientConn{e.requests, e.watches} {
		if conn != nil {
			_ = conn.Close() // it is closed once
		}
	}
	e.pages.Close()
}

// Ready implements load.Endpoint.
func (e *Endpoint) Ready(ctx context.Context) error { return e.pages.Ready(ctx) }

// failure says what an error leaves known, as an API server would.
func failure(err error) error {
	code := 0
	switch {
	case err == nil:
		return nil
	case errors.Is(rpctypes.Error(err), rpctypes.ErrCompacted):
		code = http.StatusGone
	case status.Code(err) == codes.ResourceExhausted:
		code = http.StatusTooManyRequests
	default:
		return err
	}
	return &api.StatusError{Code: code, Message: err.Error()}
}

func conflict(key string, found bool) error {
	e := &api.StatusError{Code: http.StatusConflict, Message: key + " is at another revision"}
	if !found {
		e.Code, e.Message = http.StatusNotFound, key+" is not there"
	}
	return e
}

// change does one operation if the key's ModRevision is as expected, 0 if it is not to be there,
// and returns the revision.
func (e *Endpoint) change(ctx context.Context, key string, expect int64,
	op *pb.RequestOp) (int64, error) {
	k := []byte(e.prefix + key)
	r, err := e.kv.Txn(ctx, &pb.TxnRequest{
		Compare: []*pb.Compare{{Key: k, Target: pb.Compare_MOD, Result: pb.Compare_EQUAL,
			TargetUnion: &pb.Compare_ModRevision{ModRevision: expect}}},
		Success: []*pb.RequestOp{op},
		Failure: []*pb.RequestOp{{Request: &pb.RequestOp_RequestRange{
			RequestRange: &pb.RangeRequest{Key: k}}}},
	})
	if err != nil {
		return 0, failure(err)
	}
	if !r.Succeeded {
		return 0, conflict(key, len(r.Responses[0].GetResponseRange().Kvs) > 0)
	}
	return r.Header.Revision, nil
}

func (e *Endpoint) put(ctx context.Context, o history.Object,
	expect int64) (*history.Object, error) {
	o.RV = 0
	rv, err := e.change(ctx, o.Key, expect, &pb.RequestOp{Request: &pb.RequestOp_RequestPut{
		RequestPut: &pb.PutRequest{Key: []byte(e.prefix + o.Key), Value: api.Body(o)}}})
	o.RV = rv
	return &o, err
}

// Create implements load.Endpoint.
func (e *Endpoint) Create(ctx context.Context, o history.Object) (*history.Object, error) {
	return e.put(ctx, o, 0)
}

// Update implements load.Endpoint.
func (e *Endpoint) Update(ctx context.Context, o history.Object) (*history.Object, error) {
	return e.put(ctx, o, o.RV)
}

// patchTries is how often a patch is tried, as in an API server.
const patchTries = 5

// Patch implements load.Endpoint: it reads the object, and writes it if nobody has meanwhile.
func (e *Endpoint) Patch(ctx context.Context, o history.Object) (*history.Object, error) {
	for range patchTries {
		was, err := e.Get(ctx, o.Key)
		if err != nil {
			return nil, err
		}
		o.Image = was.Image
		patched, err := e.put(ctx, o, was.RV)
		var refused *api.StatusError
		if !errors.As(err, &refused) || refused.Code != http.StatusConflict {
			return patched, err
		}
	}
	return nil, conflict(o.Key, true)
}

// Delete implements load.Endpoint.
func (e *Endpoint) Delete(ctx context.Context, key string, rv int64) error {
	_, err := e.change(ctx, key, rv, &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{
		RequestDeleteRange: &pb.DeleteRangeRequest{Key: []byte(e.prefix + key)}}})
	return err
}

// Get implements load.Endpoint.
func (e *Endpoint) Get(ctx context.Context, key string) (*history.Object, error) {
	r, err := e.kv.Range(ctx, &pb.RangeRequest{Key: []byte(e.prefix + key)})
	if err != nil {
		return nil, failure(err)
	}
	if len(r.Kvs) == 0 {
		return nil, conflict(key, false)
	}
	return e.object(r.Kvs[0])
}

func (e *Endpoint) object(kv *mvccpb.KeyValue) (*history.Object, error) {
	key := strings.TrimPrefix(string(kv.Key), e.prefix)
	e.mu.Lock()
	defer e.mu.Unlock()
	d := &e.recent[uint64(kv.ModRevision)%uint64(len(e.recent))] // whatever a server answers
	if d.object.RV != kv.ModRevision || d.object.Key != key || !bytes.Equal(d.value, kv.Value) {
		var s rows.Stored
		if err := json.Unmarshal(kv.Value, &s); err != nil {
			return nil, err
		}
		o, err := s.Object("")
		if err != nil {
			return nil, err
		}
		o.Key, o.RV = key, kv.ModRevision
		*d = decoded{value: kv.Value, object: o}
	}
	o := d.object
	return &o, nil
}

// bounds are the keys of a resource, in a namespace if there is one. The byte after '/' is '0'.
func (e *Endpoint) bounds(s history.Selector) (from, to []byte) {
	directory := e.prefix + s.Resource
	if s.Namespace != "" {
		directory += "/" + s.Namespace
	}
	return []byte(directory + "/"), []byte(directory + "0")
}

// List implements load.Endpoint.
func (e *Endpoint) List(ctx context.Context, s history.Selector, q url.Values) (*api.Page, error) {
	r := &pb.RangeRequest{Serializable: q.Get("resourceVersion") == "0"}
	r.Key, r.RangeEnd = e.bounds(s)
	at := ""
	if q.Get("resourceVersionMatch") == "Exact" {
		at = q.Get("resourceVersion")
	}
	if token := q.Get("continue"); token != "" {
		var last string
		at, last, _ = strings.Cut(token, ":")
		r.Key = []byte(last + "\x00")
	}
	var err error
	if at != "" {
		if r.Revision, err = strconv.ParseInt(at, 10, 64); err != nil {
			return nil, err
		}
	}
	if limit := q.Get("limit"); limit != "" {
		if r.Limit, err = strconv.ParseInt(limit, 10, 64); err != nil {
			return nil, err
		}
	}
	answer, err := e.kv.Range(ctx, r)
	if err != nil {
		return nil, failure(err)
	}
	p := &api.Page{RV: r.Revision}
	if p.RV == 0 {
		p.RV = answer.Header.Revision
	}
	if answer.More {
		p.Continue = fmt.Sprintf("%d:%s", p.RV, answer.Kvs[len(answer.Kvs)-1].Key)
	}
	for _, kv := range answer.Kvs {
		o, err := e.object(kv)
		if err != nil {
			return nil, err
		}
		if s.Matches(*o) {
			p.Items = append(p.Items, *o)
		}
	}
	return p, nil
}

// progressInterval is how often a watch with bookmarks asks for progress.
const progressInterval = 200 * time.Millisecond

// Follow implements load.Endpoint. The initial events are those of a list.
func (e *Endpoint) Follow(ctx context.Context, s history.Selector, q url.Values,
	each func(history.Event)) error {
	var from int64
	if q.Get("sendInitialEvents") == "true" {
		page, err := e.List(ctx, s, url.Values{})
		if err != nil {
			return err
		}
		for _, o := range page.Items {
			each(history.Event{Type: history.Added, Object: o})
		}
		from = page.RV
		each(history.Event{Type: history.Bookmark, Object: history.Object{RV: from},
			InitialEnd: true})
	} else {
		var err error
		if from, err = strconv.ParseInt(q.Get("resourceVersion"), 10, 64); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithCancel(metadata.AppendToOutgoingContext(ctx,
		rpctypes.MetadataRequireLeaderKey, rpctypes.MetadataHasLeader))
	defer cancel()
	stream, err := e.watch.Watch(ctx)
	if err != nil {
		return failure(err)
	}
	create := &pb.WatchCreateRequest{StartRevision: from + 1, PrevKv: true}
	create.Key, create.RangeEnd = e.bounds(s)
	bookmarks := q.Get("allowWatchBookmarks") == "true"
	if err := stream.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{
		CreateRequest: create}}); err != nil {
		return failure(err)
	}
	if bookmarks {
		done := make(chan struct{})
		defer func() {
			cancel()
			<-done
		}()
		go func() {
			defer close(done)
			askProgress(ctx, stream)
		}()
	}
	for {
		r, err := stream.Recv()
		switch {
		case err != nil:
			return failure(err)
		case r.CompactRevision > 0:
			return failure(rpctypes.ErrGRPCCompacted)
		case r.Canceled:
			return errors.New("the watch was canceled: " + r.CancelReason)
		case len(r.Events) == 0 && !r.Created && bookmarks:
			each(history.Event{Type: history.Bookmark,
				Object: history.Object{RV: r.Header.Revision}})
		}
		for _, event := range r.Events {
			ev, err := e.event(s, event)
			if err != nil {
				return err
			}
			if ev.Type != "" {
				each(ev)
			}
		}
	}
}

// askProgress asks until the stream ends.
func askProgress(ctx context.Context, stream pb.Watch_WatchClient) {
	ticker := time.NewTicker(progressInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if stream.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_ProgressRequest{
			ProgressRequest: &pb.WatchProgressRequest{}}}) != nil {
			return
		}
	}
}

// event is what a watcher with a selector sees of an event, as in an API server; it has no type if
// that is nothing.
func (e *Endpoint) event(s history.Selector, from *mvccpb.Event) (to history.Event, err error) {
	created, deleted := from.Kv.CreateRevision == from.Kv.ModRevision,
		from.Type == mvccpb.Event_DELETE
	if from.PrevKv == nil && (deleted || !created) {
		// Compaction has removed it. An API server ends the watch, too.
		return to, failure(rpctypes.ErrGRPCCompacted)
	}
	var now, was *history.Object
	if !deleted {
		if now, err = e.object(from.Kv); err != nil {
			return to, err
		}
	}
	if from.PrevKv != nil {
		if was, err = e.object(from.PrevKv); err != nil {
			return to, err
		}
	}
	isNow, wasBefore := now != nil && s.Matches(*now), was != nil && s.Matches(*was)
	switch {
	case isNow && wasBefore:
		return history.Event{Type: history.Modified, Object: *now}, nil
	case isNow:
		return history.Event{Type: history.Added, Object: *now}, nil
	case wasBefore:
		was.RV = from.Kv.ModRevision
		return history.Event{Type: history.Deleted, Object: *was}, nil
	}
	return to, nil
}
