package etcd

import (
	"bytes"
	"context"
	"errors"
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
)

// A transaction is done in one of two ways, and in a loop, since others write meanwhile.
//
// It reads what is compared, at one revision. If what it does then writes nothing, it reads the
// rest at the same revision, and the answer is that of a transaction which was done there. That
// revision is the head of a read that began after the call did, so the transaction takes its place
// between the call and its answer.
//
// If it writes a key, the write expects the key at the revision that was read. So it is written
// only if nobody has written the key since, and the comparisons of this key come out the same at
// the revision before the write. The comparisons of other keys, and of ranges, go along with the
// write as its condition: that all of them hold, or that one does not, whichever has led to this
// branch. They are decided anew in the transaction that writes. So no fence, no compaction and no
// other writer can come between. If they come out otherwise by then, all is read again. A key that
// changes all the time delays only a transaction whose branch it changes.
//
// What is read in the same transaction is read at the write's revision, or the one before it, as it
// comes after or before the write. The history is dense, so the revision before is the state that
// the write found.
//
// kube-apiserver compares the key's revision with one that it knows. Then the first read is left
// out: the write is tried with that expectation, and only if it is refused is the key read.

var (
	errSeveral = status.Error(codes.Unimplemented, "a transaction changes one key at most here, "+
		"since each revision belongs to one key: write the keys one after the other")
	errNested = status.Error(codes.Unimplemented, "a transaction within a transaction is not "+
		"served here: send its operations in one")
)

// Txn implements etcd's KV.
func (s *storeServer) Txn(ctx context.Context, r *pb.TxnRequest) (*pb.TxnResponse, error) {
	if err := s.checkTxn(r); err != nil {
		return nil, err
	}
	res, err := s.txn(ctx, r)
	if err != nil {
		return nil, failure(err)
	}
	return res, nil
}

func (s *storeServer) checkTxn(r *pb.TxnRequest) error {
	if max(len(r.Compare), len(r.Success), len(r.Failure)) > s.cfg.MaxTxnOps {
		return rpctypes.ErrGRPCTooManyOps
	}
	for _, c := range r.Compare {
		_, target := pb.Compare_CompareTarget_name[int32(c.Target)]
		_, result := pb.Compare_CompareResult_name[int32(c.Result)]
		switch {
		case len(c.Key) == 0:
			return rpctypes.ErrGRPCEmptyKey
		case !target || !result:
			return status.Error(codes.InvalidArgument, "a comparison is of an unknown kind")
		}
	}
	for _, ops := range [][]*pb.RequestOp{r.Success, r.Failure} {
		if err := checkOps(ops); err != nil {
			return err
		}
	}
	return nil
}

func checkOps(ops []*pb.RequestOp) error {
	var keys [][]byte
	for _, op := range ops {
		var err error
		switch o := op.GetRequest().(type) {
		case *pb.RequestOp_RequestRange:
			err = checkRange(o.RequestRange)
		case *pb.RequestOp_RequestPut:
			err = checkPut(o.RequestPut)
			keys = append(keys, o.RequestPut.GetKey())
		case *pb.RequestOp_RequestDeleteRange:
			switch d := o.RequestDeleteRange; {
			case len(d.GetKey()) == 0:
				err = rpctypes.ErrGRPCEmptyKey
			case len(d.RangeEnd) > 0:
				err = errSeveral
			case reserved(d.Key):
				err = errReserved
			}
			keys = append(keys, o.RequestDeleteRange.GetKey())
		case *pb.RequestOp_RequestTxn:
			err = errNested
		default:
			err = rpctypes.ErrGRPCKeyNotFound
		}
		if err != nil {
			return err
		}
	}
	switch {
	case len(keys) < 2:
		return nil
	case len(keys) == 2 && bytes.Equal(keys[0], keys[1]):
		return rpctypes.ErrGRPCDuplicateKey
	}
	return errSeveral
}

// written returns the key that the operations write, nil for none.
func written(ops []*pb.RequestOp) []byte {
	for _, op := range ops {
		switch o := op.Request.(type) {
		case *pb.RequestOp_RequestPut:
			return o.RequestPut.Key
		case *pb.RequestOp_RequestDeleteRange:
			return o.RequestDeleteRange.Key
		}
	}
	return nil
}

func (s *storeServer) txn(ctx context.Context, r *pb.TxnRequest) (*pb.TxnResponse, error) {
	own := &bill{s: s.Server}
	defer own.pay()
	if expect, ok := known(r); ok {
		res, err := s.write(ctx, r.Success, nil, contract.Mutation{Expect: expect}, own)
		if !conflict(err) {
			return res, err
		}
	}
	var refused contract.Revision
	for {
		own.pay() // for what was read before
		era := s.s.Era()
		kvs, holding, at, err := s.compared(ctx, r, own)
		if errors.Is(err, contract.ErrCompacted) {
			continue // compaction has passed the revision that was the head
		}
		if err != nil {
			return nil, err
		}
		holds := !slices.Contains(holding, false)
		ops := r.Success
		if !holds {
			ops = r.Failure
		}
		w := keyOf(written(ops))
		was, expect := kvs[w], contract.Revision(0)
		if was != nil {
			expect = was.Revision
		}
		if w == "" || was == nil && deletes(ops) { // there is nothing to write or to delete
			res, err := s.observe(ctx, ops, holds, kvs, at, own)
			if errors.Is(err, contract.ErrCompacted) {
				continue
			}
			return res, err
		}
		res, err := s.write(ctx, ops, was, contract.Mutation{Expect: expect, Era: era,
			If: condition(r, holding, w)}, own)
		if errors.Is(err, contract.ErrCondition) {
			// The head has not moved since the comparisons came out otherwise, so it is no write
			// that has changed them: this process remembers a value that the database has lost.
			if at == refused {
				return nil, contract.Errorf(contract.Data,
					"a value that is compared is lost: restore a backup, or write the key anew")
			}
			refused = at
		}
		if conflict(err) {
			continue
		}
		if res != nil {
			res.Succeeded = holds
		}
		return res, err
	}
}

// known tells what a transaction expects of the key that it writes if it succeeds, if that is all
// that it compares, and all that it needs to know of the key.
func known(r *pb.TxnRequest) (expect contract.Revision, ok bool) {
	w := written(r.Success)
	if len(r.Compare) != 1 || w == nil || len(w) > contract.MaxKeyBytes {
		return 0, false
	}
	c := r.Compare[0]
	if len(c.RangeEnd) > 0 || !bytes.Equal(c.Key, w) {
		return 0, false
	}
	for _, op := range r.Success {
		if p := op.GetRequestPut(); p != nil && (p.PrevKv || p.IgnoreValue || p.IgnoreLease) {
			return 0, false
		}
		if op.GetRequestDeleteRange().GetPrevKv() {
			return 0, false
		}
	}
	if c.Result != pb.Compare_EQUAL {
		return 0, false
	}
	switch t := c.TargetUnion.(type) {
	case *pb.Compare_ModRevision:
		expect, ok = contract.Revision(t.ModRevision), c.Target == pb.Compare_MOD
	case *pb.Compare_Version:
		ok = c.Target == pb.Compare_VERSION && t.Version == 0
	case *pb.Compare_CreateRevision:
		ok = c.Target == pb.Compare_CREATE && t.CreateRevision == 0
	}
	return expect, ok && expect >= 0 && !(expect == 0 && deletes(r.Success))
}

func deletes(ops []*pb.RequestOp) bool {
	for _, op := range ops {
		if op.GetRequestDeleteRange() != nil {
			return true
		}
	}
	return false
}

// compared reads the keys that are compared or written alone, and which comparisons hold, at one
// revision.
func (s *storeServer) compared(ctx context.Context, r *pb.TxnRequest, own *bill) (
	kvs map[contract.Key]*mvcc.KeyValue, holding []bool, at contract.Revision, err error) {
	kvs = map[contract.Key]*mvcc.KeyValue{}
	ranges := false
	for _, c := range r.Compare {
		if len(c.RangeEnd) > 0 {
			ranges = true
		} else {
			kvs[keyOf(c.Key)] = nil
		}
	}
	for _, ops := range [][]*pb.RequestOp{r.Success, r.Failure} {
		if w := written(ops); w != nil {
			kvs[keyOf(w)] = nil
		}
	}
	if len(kvs) != 1 || ranges {
		if at, err = s.s.Head(ctx); err != nil {
			return nil, nil, 0, err
		}
	}
	for key := range kvs {
		kv, head, err := s.get(ctx, key, at, own)
		if err != nil {
			return nil, nil, 0, err
		}
		if kvs[key] = kv; at == 0 {
			at = head
		}
	}
	for _, p := range r.Compare {
		c := comparison(p)
		some, misfit := false, false
		if len(p.RangeEnd) > 0 {
			some, misfit, err = s.misfit(ctx, &c, at)
		} else if kv := kvs[c.Start]; kv != nil {
			some, misfit = true, !fits(&c, kv)
		}
		if err != nil {
			return nil, nil, 0, err
		}
		holding = append(holding, c.Holds(some, misfit))
	}
	return kvs, holding, at, nil
}

// misfit tells whether there is a key in the range of a comparison at a revision, and whether there
// is one that does not fit.
func (s *storeServer) misfit(ctx context.Context, c *contract.Comparison,
	at contract.Revision) (some, misfit bool, err error) {
	o := mvcc.RangeOptions{Start: c.Start, End: c.End, At: at, Limit: wholePages(nil),
		KeysOnly: c.Property != contract.CompareValue}
	own := &bill{s: s.Server}
	defer own.pay()
	for more := c.Start < c.End; more && !misfit; {
		own.pay()
		p, err := s.s.Range(ctx, o)
		if err == nil {
			err = own.add(p.KVs...)
		}
		if err != nil {
			return false, false, err
		}
		for i := range p.KVs {
			some, misfit = true, misfit || !fits(c, &p.KVs[i])
		}
		if more = p.More; more {
			o.From = p.KVs[len(p.KVs)-1].Key + "\x00"
		}
	}
	return some, misfit, nil
}

// fits tells whether a key is as a comparison says.
func fits(c *contract.Comparison, kv *mvcc.KeyValue) bool {
	return c.Fits(contract.Current{ID: kv.Revision, Create: kv.Create, Version: kv.Version,
		Lease: kv.Lease}, kv.Value)
}

// comparison is a comparison as the database makes it. The kinds have the same numbers.
func comparison(p *pb.Compare) contract.Comparison {
	b := boundsOf(p.Key, p.RangeEnd)
	c := contract.Comparison{Start: b.start, End: b.end, Property: contract.Property(p.Target),
		Operator: contract.Operator(p.Result)}
	switch p.Target {
	case pb.Compare_VERSION:
		c.Number = p.GetVersion()
	case pb.Compare_CREATE:
		c.Number = p.GetCreateRevision()
	case pb.Compare_MOD:
		c.Number = p.GetModRevision()
	case pb.Compare_VALUE:
		c.Value = p.GetValue()
	case pb.Compare_LEASE:
		c.Number = p.GetLease()
	}
	return c
}

// condition is what the write of a key demands of all else that is compared, where holding tells
// which comparisons hold. It is nil if nothing else is compared, or if nothing else matters: a
// comparison of the key itself, which the write expects as it was read, does not hold.
func condition(r *pb.TxnRequest, holding []bool, w contract.Key) *contract.Condition {
	c := &contract.Condition{Hold: true}
	for i, p := range r.Compare {
		if own := len(p.RangeEnd) == 0 && keyOf(p.Key) == w; !own {
			c.Comparisons = append(c.Comparisons, comparison(p))
			c.Hold = c.Hold && holding[i]
		} else if !holding[i] {
			return nil
		}
	}
	if len(c.Comparisons) == 0 {
		return nil
	}
	return c
}

// observe answers a transaction that writes nothing, at the revision.
func (s *storeServer) observe(ctx context.Context, ops []*pb.RequestOp, succeeded bool,
	kvs map[contract.Key]*mvcc.KeyValue, at contract.Revision, own *bill) (*pb.TxnResponse, error) {
	res := &pb.TxnResponse{Header: s.header(at), Succeeded: succeeded}
	for _, op := range ops {
		r := op.GetRequestRange()
		if r == nil {
			res.Responses = append(res.Responses, deleted(&pb.DeleteRangeResponse{
				Header: s.header(at)}))
			continue
		}
		answer, err := s.observed(ctx, r, kvs, at, own)
		if err != nil {
			return nil, err
		}
		res.Responses = append(res.Responses, answer)
	}
	return res, nil
}

// observed reads what a transaction reads at a revision, if the request does not name an older one.
func (s *storeServer) observed(ctx context.Context, r *pb.RangeRequest,
	kvs map[contract.Key]*mvcc.KeyValue, at contract.Revision, own *bill) (*pb.ResponseOp, error) {
	var (
		res *pb.RangeResponse
		err error
	)
	kv, found := kvs[keyOf(r.Key)]
	switch {
	case r.Revision > int64(at):
		err = rpctypes.ErrGRPCFutureRev
	case r.Revision > 0:
		res, err = s.read(ctx, r, contract.Revision(r.Revision), own)
		if errors.Is(err, contract.ErrCompacted) {
			err = rpctypes.ErrGRPCCompacted // whatever is read beside it
		}
	case found && len(r.RangeEnd) == 0:
		res = s.one(r, kv, at)
	default:
		res, err = s.read(ctx, r, at, own)
	}
	if err != nil {
		return nil, err
	}
	res.Header = s.header(at)
	return &pb.ResponseOp{Response: &pb.ResponseOp_ResponseRange{ResponseRange: res}}, nil
}

func deleted(d *pb.DeleteRangeResponse) *pb.ResponseOp {
	return &pb.ResponseOp{Response: &pb.ResponseOp_ResponseDeleteRange{ResponseDeleteRange: d}}
}

// write does the operations, one of which changes a key. If the key was read, was holds it. The
// write expects and demands what is in expected. The error is a conflict if that is not so.
func (s *storeServer) write(ctx context.Context, ops []*pb.RequestOp, was *mvcc.KeyValue,
	expected contract.Mutation, own *bill) (*pb.TxnResponse, error) {
	var (
		m      contract.Mutation
		prevKv bool
		err    error
	)
	for _, op := range ops {
		switch o := op.Request.(type) {
		case *pb.RequestOp_RequestRange:
			if o.RequestRange.Revision > 0 {
				return nil, status.Error(codes.Unimplemented, "a transaction that changes a key "+
					"reads no older revision here: read it by itself")
			}
		case *pb.RequestOp_RequestPut:
			m, err = s.put(o.RequestPut, was)
			prevKv = o.RequestPut.PrevKv
		case *pb.RequestOp_RequestDeleteRange:
			m = contract.Mutation{Key: contract.Key(o.RequestDeleteRange.Key), Delete: true}
			prevKv = o.RequestDeleteRange.PrevKv
		}
	}
	if err != nil {
		return nil, err
	}
	m.Expect, m.Era, m.If = expected.Expect, expected.Era, expected.If
	if was != nil {
		m.HasPrev, m.PrevValue, m.PrevLease = true, was.Value, was.Lease
	}
	o, err := s.s.Apply(ctx, m)
	if err != nil {
		return nil, err
	}
	res := &pb.TxnResponse{Header: s.header(o.Revision), Succeeded: true}
	var prev *mvccpb.KeyValue
	if prevKv && was != nil {
		prev = keyValue(was)
	}
	at := o.Revision - 1
	for _, op := range ops {
		var answer *pb.ResponseOp
		switch q := op.Request.(type) {
		case *pb.RequestOp_RequestRange:
			if answer, err = s.observed(ctx, q.RequestRange, nil, at, own); err != nil {
				// It is written, and the client is not told what it has read.
				return nil, rpctypes.ErrGRPCTimeout
			}
			answer.GetResponseRange().Header = s.header(o.Revision)
		case *pb.RequestOp_RequestPut:
			at = o.Revision
			answer = &pb.ResponseOp{Response: &pb.ResponseOp_ResponsePut{
				ResponsePut: &pb.PutResponse{Header: s.header(o.Revision), PrevKv: prev}}}
		default:
			at = o.Revision
			d := &pb.DeleteRangeResponse{Header: s.header(o.Revision), Deleted: 1}
			if prev != nil {
				d.PrevKvs = []*mvccpb.KeyValue{prev}
			}
			answer = deleted(d)
		}
		res.Responses = append(res.Responses, answer)
	}
	return res, nil
}
