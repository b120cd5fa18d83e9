package etcd

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"slices"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
)

// A transaction is done in a loop, since others write meanwhile: a plan is made, and carried out if
// it still holds.
//
// The plan reads what is compared, and what is deleted, at one revision. So it knows which branches
// are taken, of nested transactions, too: etcd compares everything before it changes anything. If
// nothing is written then, the rest is read at the same revision, and the answer is that of a
// transaction which was done there. That revision is the head of a read that began after the call
// did, so the transaction takes its place between the call and its answer.
//
// What is written is written at once, by one mutation or by a transaction of the engine, which
// demands that the plan holds:
//
//   - A key that was read is expected at the revision that it had. So the comparisons of this key
//     come out the same at the revision before the write.
//   - The comparisons of other keys go along as a condition: that all of them hold, or that one
//     does not, whichever has led to this branch. They are made anew in the transaction that
//     writes. If they come out otherwise by then, all is read again. A key that changes all the
//     time delays only a transaction whose branch it changes.
//   - So do comparisons of ranges that held. Of their keys only those are compared anew that were
//     written since the plan's revision: to read all would take as long as there are keys, and all
//     writers of the store would wait.
//   - Ranges that are deleted, and all that nested transactions compare, have to be untouched since
//     the plan's revision. But of a range in which a key did not fit, this key alone: as long as it
//     is as it was, the comparison does not hold, whatever is written beside it.
//
// So no fence, no compaction and no other writer can come between.
//
// What is read in the same transaction is read when it is written, at the write's revision, or the
// one before it, as it comes after or before the writes. The history is dense, so the revision
// before is the state that the write found. Between two writes, it is that state with what the
// first ones have written.
//
// kube-apiserver compares the key's revision with one that it knows. Then the plan is left out: the
// write is tried with that expectation, and only if it is refused is the key read.

// Txn implements etcd's KV.
func (s *storeServer) Txn(ctx context.Context, r *pb.TxnRequest) (*pb.TxnResponse, error) {
	if err := checkTxn(r, s.cfg.MaxTxnOps); err != nil {
		return nil, err
	}
	res, err := s.txn(ctx, r)
	if err != nil {
		return nil, failure(err)
	}
	return res, nil
}

// checkTxn checks a transaction and those inside of it. A transaction inside of others has the
// operations that these leave of the greatest number, as in etcd.
func checkTxn(r *pb.TxnRequest, most int) error {
	if err := checkParts(r, most); err != nil {
		return err
	}
	for _, ops := range [][]*pb.RequestOp{r.GetSuccess(), r.GetFailure()} {
		if len(ops) == 1 && ops[0].GetRequestTxn() == nil {
			continue // as almost all are
		}
		if _, err := writtenOnce(ops); err != nil {
			return err
		}
	}
	return nil
}

func checkParts(r *pb.TxnRequest, most int) error {
	count := max(len(r.GetCompare()), len(r.GetSuccess()), len(r.GetFailure()))
	if count > most {
		return rpctypes.ErrGRPCTooManyOps
	}
	for _, c := range r.GetCompare() {
		_, target := pb.Compare_CompareTarget_name[int32(c.Target)]
		_, result := pb.Compare_CompareResult_name[int32(c.Result)]
		switch {
		case len(c.Key) == 0:
			return rpctypes.ErrGRPCEmptyKey
		case !target || !result:
			return status.Error(codes.InvalidArgument, "a comparison is of an unknown kind")
		}
	}
	for _, op := range slices.Concat(r.GetSuccess(), r.GetFailure()) {
		var err error
		switch o := op.GetRequest().(type) {
		case *pb.RequestOp_RequestRange:
			err = checkRange(o.RequestRange)
		case *pb.RequestOp_RequestPut:
			err = checkPut(o.RequestPut)
		case *pb.RequestOp_RequestDeleteRange:
			switch d := o.RequestDeleteRange; {
			case len(d.GetKey()) == 0:
				err = rpctypes.ErrGRPCEmptyKey
			case len(d.RangeEnd) == 0 && reserved(d.Key):
				err = errReserved
			}
		case *pb.RequestOp_RequestTxn:
			err = checkParts(o.RequestTxn, most-count)
		default:
			err = rpctypes.ErrGRPCKeyNotFound
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// writes are the keys that operations may put, and the ranges that they may delete.
type writes struct {
	puts    map[contract.Key]bool
	deletes []bounds
}

// add adds what comes besides. It tells whether a key may be put twice then, or put and deleted.
func (w *writes) add(besides writes) (twice bool) {
	meet := func(puts map[contract.Key]bool, deletes []bounds) {
		for k := range puts {
			twice = twice || slices.ContainsFunc(deletes, func(b bounds) bool {
				return k >= b.start && k < b.end
			})
		}
	}
	meet(w.puts, besides.deletes)
	meet(besides.puts, w.deletes)
	for k := range besides.puts {
		twice = twice || w.puts[k]
	}
	maps.Copy(w.puts, besides.puts)
	w.deletes = append(w.deletes, besides.deletes...)
	return twice
}

// writtenOnce returns what operations may write, and refuses those that may put a key twice, or put
// and delete it: a key has one event at a revision. Of the two branches of a transaction only one
// is taken, so they may write the same.
func writtenOnce(ops []*pb.RequestOp) (all writes, err error) {
	all.puts = map[contract.Key]bool{}
	for _, op := range ops {
		var w writes
		switch o := op.Request.(type) {
		case *pb.RequestOp_RequestPut:
			w.puts = map[contract.Key]bool{contract.Key(o.RequestPut.Key): true}
		case *pb.RequestOp_RequestDeleteRange:
			w.deletes = []bounds{boundsOf(o.RequestDeleteRange.Key, o.RequestDeleteRange.RangeEnd)}
		case *pb.RequestOp_RequestTxn:
			if w, err = writtenOnce(o.RequestTxn.GetSuccess()); err != nil {
				return all, err
			}
			other, err := writtenOnce(o.RequestTxn.GetFailure())
			if err != nil {
				return all, err
			}
			w.add(other)
		}
		if all.add(w) {
			return all, rpctypes.ErrGRPCDuplicateKey
		}
	}
	return all, nil
}

func (s *storeServer) txn(ctx context.Context, r *pb.TxnRequest) (*pb.TxnResponse, error) {
	own := &bill{s: s.Server}
	defer own.pay()
	if p := s.known(r, own); p != nil {
		res, err := p.carryOut(ctx, r)
		if !conflict(err) {
			return res, err
		}
	}
	for {
		own.pay() // for what was read before
		p := &plan{s: s, own: own, era: s.s.Era()}
		err := p.make(ctx, r)
		if err == nil {
			var res *pb.TxnResponse
			if res, err = p.carryOut(ctx, r); err == nil {
				return res, nil
			}
		}
		// Compaction may have passed the revision that was the head.
		if !conflict(err) && !errors.Is(err, contract.ErrCompacted) {
			return nil, err
		}
	}
}

// known makes the plan of a transaction that writes one key if it succeeds, compares only the
// revision of this key, with one that it names, and needs to know nothing else of it. It returns
// nil for others.
func (s *storeServer) known(r *pb.TxnRequest, own *bill) *plan {
	if len(r.Compare) != 1 || r.Compare[0].Result != pb.Compare_EQUAL || len(r.Compare[0].RangeEnd) > 0 {
		return nil
	}
	p := &plan{s: s, own: own, taken: map[*pb.TxnRequest]bool{r: true},
		was: map[*pb.RequestOp][]*mvcc.KeyValue{}}
	for _, op := range r.Success {
		var m contract.Mutation
		switch o := op.Request.(type) {
		case *pb.RequestOp_RequestPut:
			if o.RequestPut.PrevKv || o.RequestPut.IgnoreValue || o.RequestPut.IgnoreLease {
				return nil
			}
			var err error
			if m, err = s.put(o.RequestPut, nil); err != nil {
				return nil // whether that matters, the plan of others finds out
			}
		case *pb.RequestOp_RequestDeleteRange:
			if o.RequestDeleteRange.PrevKv || len(o.RequestDeleteRange.RangeEnd) > 0 {
				return nil
			}
			m = contract.Mutation{Key: contract.Key(o.RequestDeleteRange.Key), Delete: true}
			p.was[op] = []*mvcc.KeyValue{nil}
		case *pb.RequestOp_RequestRange:
			if o.RequestRange.Revision > 0 {
				return nil
			}
			continue
		default:
			return nil
		}
		p.mutations = append(p.mutations, m)
	}
	c := r.Compare[0]
	if len(p.mutations) != 1 {
		return nil
	}
	m := &p.mutations[0]
	if len(m.Key) > contract.MaxKeyBytes || contract.Key(c.Key) != m.Key {
		return nil
	}
	ok := false
	switch t := c.TargetUnion.(type) {
	case *pb.Compare_ModRevision:
		m.Expect, ok = contract.Revision(t.ModRevision), c.Target == pb.Compare_MOD
	case *pb.Compare_Version:
		ok = c.Target == pb.Compare_VERSION && t.Version == 0
	case *pb.Compare_CreateRevision:
		ok = c.Target == pb.Compare_CREATE && t.CreateRevision == 0
	}
	if !ok || m.Expect < 0 || m.Expect == 0 && m.Delete {
		return nil
	}
	return p
}

// plan is what a transaction will do.
type plan struct {
	s   *storeServer
	own *bill
	era contract.Era
	// at is the revision at which everything was read, 0 if nothing was read.
	at contract.Revision
	// kvs are the keys that were read, nil for those that do not exist.
	kvs map[contract.Key]*mvcc.KeyValue
	// taken tells of each transaction that is done which branch is taken.
	taken map[*pb.TxnRequest]bool
	// held tells of the comparisons of the outermost one which hold, and proofs what has to be
	// untouched for that to stay so.
	held   []bool
	proofs []bounds
	// mutations are in the order of the operations, and one for each key.
	mutations []contract.Mutation
	// condition is what they demand.
	condition contract.Condition
	// was are the previous values that answers need, by the operations.
	was map[*pb.RequestOp][]*mvcc.KeyValue
	// older are the answers of reads of older revisions.
	older map[*pb.RangeRequest]*pb.RangeResponse
}

// make makes the plan.
func (p *plan) make(ctx context.Context, r *pb.TxnRequest) (err error) {
	p.kvs, p.taken = map[contract.Key]*mvcc.KeyValue{}, map[*pb.TxnRequest]bool{}
	p.was = map[*pb.RequestOp][]*mvcc.KeyValue{}
	p.older = map[*pb.RangeRequest]*pb.RangeResponse{}
	if !ofOneKey(r) {
		if p.at, err = p.s.s.Head(ctx); err != nil {
			return err
		}
	}
	if err := p.branch(ctx, r, true); err != nil {
		return err
	}
	if err := p.gather(ctx, r); err != nil {
		return err
	}
	p.demand(r)
	return nil
}

// ofOneKey tells whether a transaction names one key only, whose read tells the head as well.
func ofOneKey(r *pb.TxnRequest) bool {
	var key []byte
	one := true
	name := func(k, end []byte) {
		one = one && len(end) == 0 && (key == nil || bytes.Equal(key, k))
		key = k
	}
	for _, c := range r.Compare {
		name(c.Key, c.RangeEnd)
	}
	for _, op := range slices.Concat(r.Success, r.Failure) {
		switch o := op.Request.(type) {
		case *pb.RequestOp_RequestRange:
			one = one && o.RequestRange.Revision <= 0
		case *pb.RequestOp_RequestPut:
			name(o.RequestPut.Key, nil)
		case *pb.RequestOp_RequestDeleteRange:
			name(o.RequestDeleteRange.Key, o.RequestDeleteRange.RangeEnd)
		default:
			return false
		}
	}
	return one && key != nil
}

// get reads a key at the plan's revision, which is the head if nothing was read before.
func (p *plan) get(ctx context.Context, k contract.Key) (*mvcc.KeyValue, error) {
	if kv, known := p.kvs[k]; known {
		return kv, nil
	}
	kv, head, err := p.s.get(ctx, k, p.at, p.own)
	if err != nil {
		return nil, err
	}
	if p.at == 0 {
		p.at = head
	}
	p.kvs[k] = kv
	return kv, nil
}

// branch decides which branch is taken of a transaction, and of those inside of the branch. What
// those compare has to be untouched.
func (p *plan) branch(ctx context.Context, r *pb.TxnRequest, outermost bool) error {
	holds := true
	for _, c := range r.GetCompare() {
		held, proof, err := p.holds(ctx, c)
		if err != nil {
			return err
		}
		holds = holds && held
		if outermost {
			p.held, p.proofs = append(p.held, held), append(p.proofs, proof)
		} else {
			p.untouched(proof)
		}
	}
	p.taken[r] = holds
	for _, op := range p.ops(r) {
		if t := op.GetRequestTxn(); t != nil {
			if err := p.branch(ctx, t, false); err != nil {
				return err
			}
		}
	}
	return nil
}

// ops are the operations of the branch that is taken.
func (p *plan) ops(r *pb.TxnRequest) []*pb.RequestOp {
	if p.taken[r] {
		return r.GetSuccess()
	}
	return r.GetFailure()
}

// untouched demands that a range is untouched since the plan's revision.
func (p *plan) untouched(b bounds) {
	if !b.empty() {
		p.condition.Untouched = append(p.condition.Untouched, contract.Span{Start: b.start, End: b.end})
	}
}

// holds decides a comparison at the plan's revision, and tells what has to be untouched for that to
// stay so.
func (p *plan) holds(ctx context.Context, c *pb.Compare) (held bool, proof bounds, err error) {
	made := comparison(c)
	proof = boundsOf(c.Key, c.RangeEnd)
	if len(c.RangeEnd) > 0 {
		some, misfit, err := p.s.misfit(ctx, &made, p.at)
		if misfit != nil {
			proof = bounds{start: misfit.Key, end: misfit.Key + "\x00", single: true}
		}
		return made.Holds(some, misfit != nil), proof, err
	}
	kv, err := p.get(ctx, made.Start)
	return made.Holds(kv != nil, kv != nil && !fits(&made, kv)), proof, err
}

// gather finds out what the operations write.
func (p *plan) gather(ctx context.Context, r *pb.TxnRequest) error {
	for _, op := range p.ops(r) {
		var err error
		switch o := op.Request.(type) {
		case *pb.RequestOp_RequestRange:
			err = p.readOlder(ctx, o.RequestRange)
		case *pb.RequestOp_RequestPut:
			err = p.addPut(ctx, op, o.RequestPut)
		case *pb.RequestOp_RequestDeleteRange:
			err = p.addDeletion(ctx, op, o.RequestDeleteRange)
		case *pb.RequestOp_RequestTxn:
			err = p.gather(ctx, o.RequestTxn)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// addPut adds the mutation of a put. If nobody needs to know what was there, it is not read.
func (p *plan) addPut(ctx context.Context, op *pb.RequestOp, r *pb.PutRequest) error {
	key := contract.Key(r.Key)
	was, known := p.kvs[key]
	if !known && (r.PrevKv || r.IgnoreValue || r.IgnoreLease) {
		var err error
		if was, err = p.get(ctx, key); err != nil {
			return err
		}
		known = true
	}
	m, err := p.s.put(r, was)
	if err != nil {
		return err
	}
	m.Expect = contract.Any
	if known {
		m.Expect = 0
	}
	if r.PrevKv && was != nil {
		p.was[op] = []*mvcc.KeyValue{was}
	}
	return p.add(m, was)
}

// add adds a mutation, where the key was as it was read, if it was. A plan that has too many is
// given up at once: ranges that are deleted may have so many keys that it would take seconds to
// plan what is refused.
func (p *plan) add(m contract.Mutation, was *mvcc.KeyValue) error {
	const most = contract.MaxParts + 1
	if len(p.mutations) == most {
		return &contract.LimitError{What: "transaction", Bytes: most + 1, Limit: most, Keys: true}
	}
	m.Era = p.era
	if was != nil {
		m.Expect, m.HasPrev, m.PrevValue, m.PrevLease = was.Revision, true, was.Value, was.Lease
	}
	p.mutations = append(p.mutations, m)
	return nil
}

// addDeletion adds the mutations of a deletion. A key that is deleted twice exists for the first
// deletion only.
func (p *plan) addDeletion(ctx context.Context, op *pb.RequestOp, r *pb.DeleteRangeRequest) error {
	var found []*mvcc.KeyValue
	b := boundsOf(r.Key, r.RangeEnd)
	switch {
	case b.single:
		kv, err := p.get(ctx, b.start)
		if err != nil {
			return err
		}
		if kv == nil {
			p.untouched(b)
		} else {
			found = []*mvcc.KeyValue{kv}
		}
	case !b.empty():
		p.untouched(b)
		var err error
		if found, err = p.some(ctx, b); err != nil {
			return err
		}
	}
	for _, kv := range found {
		if reserved(kv.Key) {
			return errReserved
		}
		if !slices.ContainsFunc(p.mutations, func(m contract.Mutation) bool { return m.Key == kv.Key }) {
			if err := p.add(contract.Mutation{Key: kv.Key, Delete: true}, kv); err != nil {
				return err
			}
			p.was[op] = append(p.was[op], kv)
		}
	}
	return nil
}

// some reads the keys of a range, up to one more than a transaction may write.
func (p *plan) some(ctx context.Context, b bounds) (found []*mvcc.KeyValue, err error) {
	o := mvcc.RangeOptions{Start: b.start, End: b.end, At: p.at, Limit: contract.MaxParts + 2}
	for more := true; more && len(found) < o.Limit; {
		page, err := p.s.s.Range(ctx, o)
		if err == nil {
			err = p.own.add(page.KVs...)
		}
		if err != nil {
			return nil, err
		}
		for i := range page.KVs {
			found = append(found, &page.KVs[i])
		}
		if more = page.More; more {
			o.From = found[len(found)-1].Key + "\x00"
		}
	}
	return found, nil
}

// readOlder reads what a transaction reads at an older revision, which is the same before and after
// the transaction.
func (p *plan) readOlder(ctx context.Context, r *pb.RangeRequest) error {
	if r.Revision <= 0 {
		return nil
	}
	if r.Revision > int64(p.at) {
		return rpctypes.ErrGRPCFutureRev
	}
	res, err := p.s.read(ctx, r, contract.Revision(r.Revision), p.own)
	if errors.Is(err, contract.ErrCompacted) {
		err = rpctypes.ErrGRPCCompacted // whatever is read beside it
	}
	p.older[r] = res
	return err
}

// demand makes the condition of what the outermost transaction compares. What its write expects of
// a key need not be compared again. If it is a comparison of such a key that does not hold, nothing
// else matters; and if it is one of another key, no range matters.
func (p *plan) demand(r *pb.TxnRequest) {
	if len(p.mutations) == 0 {
		return
	}
	c := &p.condition
	c.Hold = true
	var others, ranges []int
	for i, q := range r.Compare {
		switch b := boundsOf(q.Key, q.RangeEnd); {
		case !b.single:
			ranges = append(ranges, i)
		case !p.expects(b.start):
			others = append(others, i)
		case !p.held[i]:
			p.attach()
			return
		}
	}
	fails := func(i int) bool { return !p.held[i] }
	if !p.taken[r] {
		if c.Hold = !slices.ContainsFunc(others, fails); c.Hold {
			others = nil
			ranges = ranges[slices.IndexFunc(ranges, fails):][:1]
		} else {
			ranges = nil
		}
	}
	for _, i := range others {
		c.Comparisons = append(c.Comparisons, comparison(r.Compare[i]))
	}
	for _, i := range ranges {
		made := comparison(r.Compare[i])
		if made.Changed = true; p.held[i] {
			c.Comparisons = append(c.Comparisons, made)
		} else {
			p.untouched(p.proofs[i])
		}
	}
	p.attach()
}

// expects tells whether the key is written only if it is as it was read.
func (p *plan) expects(k contract.Key) bool {
	return slices.ContainsFunc(p.mutations, func(m contract.Mutation) bool {
		return m.Key == k && m.Expect != contract.Any
	})
}

// attach gives the condition to the write.
func (p *plan) attach() {
	c := &p.condition
	changed := func(c contract.Comparison) bool { return c.Changed }
	if len(c.Untouched) > 0 || slices.ContainsFunc(c.Comparisons, changed) {
		c.Since = p.at
	}
	if len(c.Comparisons) > 0 || len(c.Untouched) > 0 {
		p.mutations[0].If = c
	}
}

// carryOut does what was planned, and answers. The error is a conflict if the plan does not hold.
func (p *plan) carryOut(ctx context.Context, r *pb.TxnRequest) (*pb.TxnResponse, error) {
	a := &answer{plan: p, before: p.at, after: p.at, wrote: map[contract.Key]*mvcc.KeyValue{}}
	var err error
	switch len(p.mutations) {
	case 0:
		if p.at == 0 {
			a.after, err = p.s.s.Head(ctx)
			a.before = a.after
		}
	case 1:
		var o contract.Outcome
		o, err = p.s.s.Apply(ctx, p.mutations[0])
		a.before, a.after = o.Revision-1, o.Revision
	default:
		a.after, err = p.s.s.Transact(ctx, p.mutations)
		a.before = a.after - 1
	}
	if err != nil {
		return nil, err
	}
	res, err := a.txn(ctx, r)
	if err != nil && len(p.mutations) > 0 {
		// It is written, and the client is not told what it has read.
		return nil, rpctypes.ErrGRPCTimeout
	}
	return res, err
}

// answer answers a transaction that was done.
type answer struct {
	*plan
	// before and after are the revisions before and after the write, the same if nothing was
	// written.
	before, after contract.Revision
	// done is how many of the mutations come before the operation that is answered.
	done int
	// wrote are the keys that were put, as far as they were read again.
	wrote map[contract.Key]*mvcc.KeyValue
}

func (a *answer) txn(ctx context.Context, r *pb.TxnRequest) (*pb.TxnResponse, error) {
	res := &pb.TxnResponse{Header: a.s.header(a.after), Succeeded: a.taken[r]}
	for _, op := range a.ops(r) {
		answer := &pb.ResponseOp{}
		was := a.was[op]
		switch o := op.Request.(type) {
		case *pb.RequestOp_RequestRange:
			found, err := a.read(ctx, o.RequestRange)
			if err != nil {
				return nil, err
			}
			found.Header = a.s.header(a.after)
			answer.Response = &pb.ResponseOp_ResponseRange{ResponseRange: found}
		case *pb.RequestOp_RequestPut:
			a.done++
			put := &pb.PutResponse{Header: a.s.header(a.after)}
			if len(was) > 0 {
				put.PrevKv = keyValue(was[0])
			}
			answer.Response = &pb.ResponseOp_ResponsePut{ResponsePut: put}
		case *pb.RequestOp_RequestDeleteRange:
			a.done += len(was)
			d := &pb.DeleteRangeResponse{Header: a.s.header(a.after), Deleted: int64(len(was))}
			for _, kv := range was {
				if o.RequestDeleteRange.PrevKv {
					d.PrevKvs = append(d.PrevKvs, keyValue(kv))
				}
			}
			answer.Response = &pb.ResponseOp_ResponseDeleteRange{ResponseDeleteRange: d}
		case *pb.RequestOp_RequestTxn:
			inner, err := a.txn(ctx, o.RequestTxn)
			if err != nil {
				return nil, err
			}
			answer.Response = &pb.ResponseOp_ResponseTxn{ResponseTxn: inner}
		}
		res.Responses = append(res.Responses, answer)
	}
	return res, nil
}

// read reads what the transaction reads after as many of its mutations as are done.
func (a *answer) read(ctx context.Context, r *pb.RangeRequest) (*pb.RangeResponse, error) {
	if older := a.older[r]; older != nil {
		return older, nil
	}
	switch a.done {
	case len(a.mutations):
		if kv, found := a.kvs[keyOf(r.Key)]; found && len(r.RangeEnd) == 0 && a.done == 0 {
			return a.s.one(r, kv, a.after), nil
		}
		return a.s.read(ctx, r, a.after, a.own)
	case 0:
		return a.s.read(ctx, r, a.before, a.own)
	}
	res, err := a.s.read(ctx, &pb.RangeRequest{Key: r.Key, RangeEnd: r.RangeEnd,
		KeysOnly: r.CountOnly}, a.before, a.own)
	if err != nil {
		return nil, err
	}
	b := boundsOf(r.Key, r.RangeEnd)
	for i := range a.mutations[:a.done] {
		key := a.mutations[i].Key
		if key < b.start || key >= b.end {
			continue
		}
		kv, err := a.written(ctx, &a.mutations[i])
		if err != nil {
			return nil, err
		}
		at, found := slices.BinarySearchFunc(res.Kvs, string(key), func(kv *mvccpb.KeyValue, k string) int {
			return strings.Compare(string(kv.Key), k)
		})
		switch {
		case kv == nil && found:
			res.Kvs = slices.Delete(res.Kvs, at, at+1)
		case kv != nil && found:
			res.Kvs[at] = keyValue(kv)
		case kv != nil:
			res.Kvs = slices.Insert(res.Kvs, at, keyValue(kv))
		}
	}
	res.Count = int64(len(res.Kvs))
	if r.CountOnly {
		res.Kvs = nil
	}
	arrange(r, res)
	return res, nil
}

// written returns what a mutation has written, nil if it has deleted the key. It is read once,
// however many reads of the transaction have it.
func (a *answer) written(ctx context.Context, m *contract.Mutation) (*mvcc.KeyValue, error) {
	kv, known := a.wrote[m.Key]
	if m.Delete || known {
		return kv, nil
	}
	kv, _, err := a.s.get(ctx, m.Key, a.after, a.own)
	if err == nil {
		a.wrote[m.Key] = kv
	}
	return kv, err
}

// misfit tells whether there is a key in the range of a comparison at a revision, and finds one
// that does not fit, if there is any: of several, one that nobody has written for long.
func (s *storeServer) misfit(ctx context.Context, c *contract.Comparison,
	at contract.Revision) (some bool, misfit *mvcc.KeyValue, err error) {
	o := mvcc.RangeOptions{Start: c.Start, End: c.End, At: at, Limit: wholePages(nil),
		KeysOnly: c.Property != contract.CompareValue}
	own := &bill{s: s.Server}
	defer own.pay()
	for more := c.Start < c.End; more && misfit == nil; {
		own.pay()
		p, err := s.s.Range(ctx, o)
		if err == nil {
			err = own.add(p.KVs...)
		}
		if err != nil {
			return false, nil, err
		}
		for i := range p.KVs {
			some = true
			if kv := &p.KVs[i]; !fits(c, kv) && (misfit == nil || kv.Revision < misfit.Revision) {
				misfit = kv
			}
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
