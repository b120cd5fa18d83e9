package etcd

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
)

// beyond is greater than every key.
var beyond = contract.Key(strings.Repeat("\xff", contract.MaxKeyBytes+1))

// bounds is a range of keys, or one key if single.
type bounds struct {
	start, end contract.Key
	single     bool
}

// keyOf is a key that is only read, or a bound of keys, of which some more bytes are kept than the
// longest key has. That is the same to all keys that there can be: each of them differs from it
// before that, or is its beginning and less. So what a read leaves behind, and what a watch keeps,
// is as small as keys are.
func keyOf(key []byte) contract.Key { return contract.Key(key[:min(len(key), contract.MaxKeyBytes+1)]) }

// boundsOf reads a key and a range's end as etcd does: no end is the key alone, and the end "\x00"
// is all keys from the key on.
func boundsOf(key, end []byte) bounds {
	start := keyOf(key)
	switch {
	case len(end) == 0:
		return bounds{start: start, end: start + "\x00", single: true}
	case len(end) == 1 && end[0] == 0:
		return bounds{start: start, end: beyond}
	}
	return bounds{start: start, end: keyOf(end)}
}

func (b bounds) empty() bool { return b.start >= b.end }

// Range implements etcd's KV.
func (s *storeServer) Range(ctx context.Context, r *pb.RangeRequest) (*pb.RangeResponse, error) {
	if err := checkRange(r); err != nil {
		return nil, err
	}
	b := &bill{s: s.Server}
	defer b.pay()
	res, err := s.read(ctx, r, contract.Revision(max(r.Revision, 0)), b)
	if err != nil {
		return nil, failure(err)
	}
	return res, nil
}

func checkRange(r *pb.RangeRequest) error {
	_, order := pb.RangeRequest_SortOrder_name[int32(r.SortOrder)]
	_, target := pb.RangeRequest_SortTarget_name[int32(r.SortTarget)]
	switch {
	case len(r.Key) == 0:
		return rpctypes.ErrGRPCEmptyKey
	case !order || !target:
		return rpctypes.ErrGRPCInvalidSortOption
	}
	return nil
}

// sorted tells whether the order is another one than that of the keys.
func sorted(r *pb.RangeRequest) bool {
	return r.SortOrder == pb.RangeRequest_DESCEND || r.SortTarget != pb.RangeRequest_KEY
}

func filtered(r *pb.RangeRequest) bool {
	return r.MinModRevision|r.MaxModRevision|r.MinCreateRevision|r.MaxCreateRevision != 0
}

// read reads at a revision, 0 for the newest.
func (s *storeServer) read(ctx context.Context, r *pb.RangeRequest, at contract.Revision,
	own *bill) (*pb.RangeResponse, error) {
	b := boundsOf(r.Key, r.RangeEnd)
	res := &pb.RangeResponse{}
	switch {
	case b.single:
		kv, head, err := s.get(ctx, b.start, at, own)
		if err != nil {
			return nil, err
		}
		return s.one(r, kv, head), nil
	case r.CountOnly || b.empty():
		n, head, err := s.s.CountAt(ctx, b.start, max(b.start, b.end), at)
		if err != nil {
			return nil, err
		}
		res.Header, res.Count = s.header(head), n
		return res, nil
	}
	limit := int(r.Limit)
	if sorted(r) || filtered(r) {
		limit = 0
	}
	err := s.pages(ctx, b, r, at, limit, wholePages, own, func(p *mvcc.RangeResult, _ bool) error {
		for i := range p.KVs {
			res.Kvs = append(res.Kvs, keyValue(&p.KVs[i]))
		}
		res.Header, res.Count, res.More = s.header(p.Head), p.Count, p.More
		return nil
	})
	if err != nil {
		return nil, err
	}
	arrange(r, res)
	return res, nil
}

// get reads a key at a revision, 0 for the newest, and returns the head, too.
func (s *storeServer) get(ctx context.Context, key contract.Key, at contract.Revision,
	own *bill) (kv *mvcc.KeyValue, head contract.Revision, err error) {
	if at == 0 {
		kv, head, err = s.s.Get(ctx, key)
	} else {
		kv, head, err = s.s.GetAt(ctx, key, at)
	}
	if err == nil && kv != nil {
		err = own.add(*kv)
	}
	return kv, head, err
}

// one answers a request for one key.
func (s *storeServer) one(r *pb.RangeRequest, kv *mvcc.KeyValue, head contract.Revision) *pb.RangeResponse {
	res := &pb.RangeResponse{Header: s.header(head)}
	if kv != nil {
		res.Count = 1
		if !r.CountOnly {
			res.Kvs = []*mvccpb.KeyValue{keyValue(kv)}
		}
	}
	arrange(r, res)
	return res
}

// pageRows returns how many keys to read after a page, nil before the first one. An answer is made
// of as many reads as it takes, all of one revision.
type pageRows func(*mvcc.RangeResult) int

// wholePages are those of an answer that is sent at once.
func wholePages(*mvcc.RangeResult) int { return 10_000 }

// turnedKeys is how long a later page of a client's list may be to be read at once, even if it is
// sent as a stream. Such a page has a revision, and is read before it is asked for; see
// [mvcc.RangeOptions].
const turnedKeys = 1_000

// chunkBytes is about how large a chunk of a stream is. None is more than a key larger than twice
// that.
const chunkBytes = 1 << 20

// streamPages are small at first, and then about a chunk, so that the client works on one while the
// next one is read.
func streamPages(p *mvcc.RangeResult) int {
	if p == nil {
		return 100
	}
	n := len(p.KVs)
	return max(1, min(4*n, n*chunkBytes/(p.Bytes()+1)))
}

// pages reads a range, as many keys as the limit says (0 for all), in pages of one snapshot. All
// have the head of the first one: clients watch from the revision that an answer names, and must
// not miss what is written between two pages. The last page has the number of all keys of the range
// in Count.
func (s *storeServer) pages(ctx context.Context, b bounds, r *pb.RangeRequest, at contract.Revision,
	limit int, rows pageRows, own *bill, each func(p *mvcc.RangeResult, last bool) error) error {
	o := mvcc.RangeOptions{Start: b.start, End: b.end, At: at, Limit: rows(nil), Exact: true,
		KeysOnly: r.KeysOnly && r.SortTarget != pb.RangeRequest_VALUE}
	var head contract.Revision
	for done := 0; ; {
		if left := limit - done; limit > 0 && left <= o.Limit {
			o.Limit, o.Count, o.Ahead = left, true, limit
		}
		p, err := s.s.Range(ctx, o)
		if err == nil {
			err = own.add(p.KVs...)
		}
		if err != nil {
			return err
		}
		if head == 0 {
			head = p.Head
		}
		p.Head = head
		// If it was not counted, it is right for a page that ends the range.
		p.Count = int64(done) + max(p.Count, int64(len(p.KVs)))
		done += len(p.KVs)
		last := !p.More || limit > 0 && done >= limit
		if err := each(p, last); err != nil || last {
			return err
		}
		o.At, o.From, o.Limit = p.Revision, p.KVs[len(p.KVs)-1].Key+"\x00", rows(p)
	}
}

// arrange leaves out, sorts and cuts off what the request says.
func arrange(r *pb.RangeRequest, res *pb.RangeResponse) {
	if filtered(r) {
		outside := func(revision, least, most int64) bool {
			return revision < least || most != 0 && revision > most // as in etcd, also below 0
		}
		res.Kvs = slices.DeleteFunc(res.Kvs, func(kv *mvccpb.KeyValue) bool {
			return outside(kv.ModRevision, r.MinModRevision, r.MaxModRevision) ||
				outside(kv.CreateRevision, r.MinCreateRevision, r.MaxCreateRevision)
		})
	}
	if sorted(r) {
		slices.SortStableFunc(res.Kvs, func(a, b *mvccpb.KeyValue) int {
			order := 0
			switch r.SortTarget {
			case pb.RangeRequest_VERSION:
				order = cmp.Compare(a.Version, b.Version)
			case pb.RangeRequest_CREATE:
				order = cmp.Compare(a.CreateRevision, b.CreateRevision)
			case pb.RangeRequest_MOD:
				order = cmp.Compare(a.ModRevision, b.ModRevision)
			case pb.RangeRequest_VALUE:
				order = bytes.Compare(a.Value, b.Value)
			default:
				order = bytes.Compare(a.Key, b.Key)
			}
			if r.SortOrder == pb.RangeRequest_DESCEND {
				return -order
			}
			return order
		})
	}
	if r.Limit > 0 && len(res.Kvs) > int(r.Limit) {
		res.Kvs, res.More = res.Kvs[:r.Limit], true
	}
	if r.KeysOnly {
		for _, kv := range res.Kvs {
			kv.Value = nil
		}
	}
}

// RangeStream implements etcd's KV.
func (s *storeServer) RangeStream(r *pb.RangeRequest,
	stream grpc.ServerStreamingServer[pb.RangeStreamResponse]) error {
	if err := checkRange(r); err != nil {
		return err
	}
	if sorted(r) || filtered(r) {
		return status.Error(codes.Unimplemented,
			"a stream has no sort order and no bounds of revisions: use Range")
	}
	ctx := stream.Context()
	own := &bill{s: s.Server}
	defer own.pay()
	b := boundsOf(r.Key, r.RangeEnd)
	if b.single || r.CountOnly || b.empty() {
		res, err := s.read(ctx, r, contract.Revision(max(r.Revision, 0)), own)
		if err != nil {
			return failure(err)
		}
		return stream.Send(&pb.RangeStreamResponse{RangeResponse: res})
	}
	rows := streamPages
	if r.Limit > 0 && r.Limit <= turnedKeys && r.Revision > 0 || s.s.Cached(b.start, b.end) {
		rows = wholePages
	}
	err := s.pages(ctx, b, r, contract.Revision(max(r.Revision, 0)), int(r.Limit), rows, own,
		func(p *mvcc.RangeResult, last bool) error {
			defer own.pay()
			chunk, size := &pb.RangeResponse{}, 0
			for i := range p.KVs {
				if size >= 2*chunkBytes {
					err := stream.Send(&pb.RangeStreamResponse{RangeResponse: chunk})
					if err != nil {
						return err
					}
					chunk, size = &pb.RangeResponse{}, 0
				}
				chunk.Kvs = append(chunk.Kvs, keyValue(&p.KVs[i]))
				size += len(p.KVs[i].Key) + len(p.KVs[i].Value)
			}
			if last {
				// Kube-apiserver wants the header together with the last key of a page.
				chunk.Header, chunk.Count, chunk.More = s.header(p.Head), p.Count, p.More
			}
			return stream.Send(&pb.RangeStreamResponse{RangeResponse: chunk})
		})
	if err != nil {
		return failure(err)
	}
	return nil
}

// Put implements etcd's KV.
func (s *storeServer) Put(ctx context.Context, r *pb.PutRequest) (*pb.PutResponse, error) {
	if err := checkPut(r); err != nil {
		return nil, err
	}
	for {
		m, was, err := s.mutation(ctx, r)
		if err != nil {
			return nil, failure(err)
		}
		o, err := s.s.Apply(ctx, m)
		if conflict(err) {
			continue // it was read, and somebody has written it since
		}
		if err != nil {
			return nil, failure(err)
		}
		res := &pb.PutResponse{Header: s.header(o.Revision)}
		if r.PrevKv && was != nil {
			res.PrevKv = keyValue(was)
		}
		return res, nil
	}
}

// errLongKey has the code of etcd's own errors for requests that can never be answered.
var errLongKey = status.Errorf(codes.InvalidArgument, "a key has at most %d bytes here",
	contract.MaxKeyBytes)

// errReserved has a code that clients do not retry.
var errReserved = status.Errorf(codes.InvalidArgument, "the keys that begin with %q hold what "+
	"Rowkeeper records in the store: write and delete other keys only", contract.Reserved)

func reserved[T ~string | ~[]byte](key T) bool {
	return strings.HasPrefix(string(key), contract.Reserved)
}

func checkPut(r *pb.PutRequest) error {
	switch {
	case len(r.Key) == 0:
		return rpctypes.ErrGRPCEmptyKey
	case len(r.Key) > contract.MaxKeyBytes:
		return errLongKey
	case reserved(r.Key):
		return errReserved
	case r.IgnoreValue && len(r.Value) != 0:
		return rpctypes.ErrGRPCValueProvided
	case r.IgnoreLease && r.Lease != 0:
		return rpctypes.ErrGRPCLeaseProvided
	}
	return nil
}

// conflict tells whether what a write expects has to be read again.
func conflict(err error) bool {
	var c *contract.ConflictError
	return errors.As(err, &c) || errors.Is(err, contract.ErrCondition) ||
		errors.Is(err, mvcc.ErrOtherEra)
}

// mutation makes the mutation of a put that compares nothing. If the answer or the write needs what
// was there, it reads that, which the mutation then expects.
func (s *storeServer) mutation(ctx context.Context,
	r *pb.PutRequest) (m contract.Mutation, was *mvcc.KeyValue, err error) {
	expect, era := contract.Any, s.s.Era()
	if r.PrevKv || r.IgnoreValue || r.IgnoreLease {
		if was, _, err = s.s.Get(ctx, contract.Key(r.Key)); err != nil {
			return m, nil, err
		}
		expect = 0
		if was != nil {
			expect = was.Revision
		}
	}
	m, err = s.put(r, was)
	m.Expect, m.Era = expect, era
	if was != nil {
		m.HasPrev, m.PrevValue, m.PrevLease = true, was.Value, was.Lease
	}
	return m, was, err
}

// put makes the mutation of a put, without an expectation. If the key exists, was holds it.
func (s *storeServer) put(r *pb.PutRequest,
	was *mvcc.KeyValue) (m contract.Mutation, err error) {
	if (r.IgnoreValue || r.IgnoreLease) && was == nil {
		return m, rpctypes.ErrGRPCKeyNotFound
	}
	if len(r.Key)+len(r.Value) > s.cfg.MaxRequestBytes {
		return m, rpctypes.ErrGRPCRequestTooLarge
	}
	m = contract.Mutation{Key: contract.Key(r.Key), Value: r.Value, Lease: contract.Lease(r.Lease)}
	if r.IgnoreValue {
		m.Value = was.Value
	}
	if r.IgnoreLease {
		m.Lease = was.Lease
	}
	if m.Lease < 0 {
		return m, rpctypes.ErrGRPCLeaseNotFound
	}
	return m, nil
}

// DeleteRange implements etcd's KV. The keys of a range are deleted as one, if a commit holds them,
// and otherwise in their order, many in one commit. If one of them is reserved, none is deleted.
func (s *storeServer) DeleteRange(ctx context.Context,
	r *pb.DeleteRangeRequest) (*pb.DeleteRangeResponse, error) {
	if len(r.Key) == 0 {
		return nil, rpctypes.ErrGRPCEmptyKey
	}
	b := boundsOf(r.Key, r.RangeEnd)
	res := &pb.DeleteRangeResponse{}
	own := &bill{s: s.Server}
	defer own.pay()
	var keys []contract.Key
	if b.single && len(b.start) <= contract.MaxKeyBytes {
		keys = []contract.Key{b.start}
	} else if !b.single && !b.empty() {
		err := s.pages(ctx, b, &pb.RangeRequest{KeysOnly: true}, 0, 0, wholePages, own,
			func(p *mvcc.RangeResult, _ bool) error {
				res.Header = s.header(p.Head)
				for i := range p.KVs {
					keys = append(keys, p.KVs[i].Key)
				}
				return nil
			})
		if err != nil {
			return nil, failure(err)
		}
	}
	if slices.ContainsFunc(keys, reserved) {
		return nil, errReserved
	}
	deleted := func(was *mvcc.KeyValue, revision contract.Revision, err error) error {
		if revision > 0 && err == nil {
			res.Deleted++
			res.Header = s.header(revision)
			if r.PrevKv && was != nil {
				res.PrevKvs = append(res.PrevKvs, keyValue(was))
			}
		}
		return err
	}
	var err error
	if n := len(keys); !b.single && 0 < n && n <= contract.MaxParts+1 {
		var head contract.Revision
		if head, err = s.removeAsOne(ctx, b, r.PrevKv, own, deleted); head > 0 || err != nil {
			keys, res.Header = nil, s.header(head)
		}
	}
	for len(keys) > 1 && err == nil {
		keys, err = s.removeSome(ctx, keys, r.PrevKv, own, deleted)
	}
	for _, key := range keys {
		if err == nil {
			err = deleted(s.remove(ctx, key, r.PrevKv, own))
		}
	}
	if err != nil {
		return nil, failure(err)
	}
	if res.Header == nil {
		head, err := s.s.Head(ctx)
		if err != nil {
			return nil, failure(err)
		}
		res.Header = s.header(head)
	}
	return res, nil
}

// triesAsOne is how often a range is deleted as one before it is deleted in groups. Others may
// write in it all the time, and its deletion would never end.
const triesAsOne = 8

// removeAsOne deletes the keys of a range at one revision, as a transaction does. It returns this
// revision, or the head if there are no keys any more. It returns 0 if that is not possible: there
// are more keys than a commit holds, or longer values, or others write in the range all the time.
func (s *storeServer) removeAsOne(ctx context.Context, b bounds, read bool, own *bill,
	deleted func(*mvcc.KeyValue, contract.Revision, error) error) (contract.Revision, error) {
	for range triesAsOne {
		own.pay() // for what was read before
		era := s.s.Era()
		p, err := s.s.Range(ctx, mvcc.RangeOptions{Start: b.start, End: b.end,
			Limit: contract.MaxParts + 2})
		if err == nil {
			err = own.add(p.KVs...)
		}
		switch {
		case err != nil:
			return 0, err
		case p.More || len(p.KVs) > contract.MaxParts+1:
			return 0, nil
		case len(p.KVs) == 0:
			return p.Head, nil
		}
		ms := make([]contract.Mutation, len(p.KVs))
		for i := range p.KVs {
			kv := &p.KVs[i]
			if reserved(kv.Key) {
				return 0, errReserved
			}
			ms[i] = contract.Mutation{Key: kv.Key, Expect: kv.Revision, Era: era, Delete: true,
				HasPrev: true, PrevValue: kv.Value, PrevLease: kv.Lease}
		}
		ms[0].If = &contract.Condition{Hold: true, Since: p.Revision,
			Untouched: []contract.Span{{Start: b.start, End: b.end}}}
		revision, err := s.s.Transact(ctx, ms)
		var limit *contract.LimitError
		switch {
		case errors.As(err, &limit):
			return 0, nil
		case err != nil && !conflict(err):
			return 0, err
		case err == nil:
			for i := range p.KVs {
				_ = deleted(&p.KVs[i], revision, nil) // it fails with the error that it is given
			}
			if !read {
				own.pay()
			}
			return revision, nil
		}
	}
	return 0, nil
}

// removedAtOnce is how many keys of a range are deleted at a time.
const removedAtOnce = 1_000

// removeSome deletes the first of the keys, as many as a read brings the values of, which a commit
// counts. It returns the others. deleted is told of each key that was there.
func (s *storeServer) removeSome(ctx context.Context, keys []contract.Key, read bool, own *bill,
	deleted func(*mvcc.KeyValue, contract.Revision, error) error) (left []contract.Key, err error) {
	some, era := keys[:min(len(keys), removedAtOnce)], s.s.Era()
	p, err := s.s.Range(ctx, mvcc.RangeOptions{Start: some[0], End: some[len(some)-1] + "\x00",
		Limit: removedAtOnce})
	if err == nil {
		err = own.add(p.KVs...)
	}
	if err != nil {
		return nil, err
	}
	if !read {
		defer own.pay()
	}
	if p.More { // there are others behind what was read
		n, found := slices.BinarySearch(some, p.KVs[len(p.KVs)-1].Key)
		if found {
			n++
		}
		some = some[:n]
	}
	var ms []contract.Mutation
	var kvs []*mvcc.KeyValue
	for i := range p.KVs {
		kv := &p.KVs[i]
		if _, asked := slices.BinarySearch(some, kv.Key); asked {
			kvs = append(kvs, kv)
			ms = append(ms, contract.Mutation{Key: kv.Key, Expect: kv.Revision, Era: era, Delete: true,
				HasPrev: true, PrevValue: kv.Value, PrevLease: kv.Lease})
		}
	}
	outcomes, errs := s.s.ApplyAll(ctx, ms)
	for i, err := range errs {
		if conflict(err) { // somebody has written it meanwhile
			err = deleted(s.remove(ctx, kvs[i].Key, read, own))
		} else {
			err = deleted(kvs[i], outcomes[i].Revision, err)
		}
		if err != nil {
			return nil, err
		}
	}
	return keys[len(some):], nil
}

// remove deletes a key. The revision is 0 if it did not exist.
func (s *storeServer) remove(ctx context.Context, key contract.Key, read bool,
	own *bill) (was *mvcc.KeyValue, revision contract.Revision, err error) {
	for {
		m := contract.Mutation{Key: key, Expect: contract.Any, Era: s.s.Era(), Delete: true}
		if read {
			if was, _, err = s.get(ctx, key, 0, own); err != nil || was == nil {
				return nil, 0, err
			}
			m.Expect, m.HasPrev, m.PrevValue, m.PrevLease = was.Revision, true, was.Value, was.Lease
		}
		o, err := s.s.Apply(ctx, m)
		if conflict(err) && !read {
			return nil, 0, nil
		}
		if conflict(err) {
			continue
		}
		return was, o.Revision, err
	}
}

// Compact implements etcd's KV.
func (s *storeServer) Compact(ctx context.Context,
	r *pb.CompactionRequest) (*pb.CompactionResponse, error) {
	head, err := s.s.CompactExactly(ctx, contract.Revision(r.Revision))
	if err == nil && r.Physical {
		err = s.s.Sweep(ctx)
	}
	if err != nil {
		return nil, failure(err)
	}
	return &pb.CompactionResponse{Header: s.header(head)}, nil
}
