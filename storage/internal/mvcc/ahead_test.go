package mvcc_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/dbtest"
)

// paged tells of each page that was read. Before it reads one, it asks before.
type paged struct {
	contract.Backend
	before func(context.Context, contract.PageQuery) error
	read   chan contract.PageQuery
}

func (p *paged) Page(ctx context.Context, q contract.PageQuery) (*contract.Page, error) {
	if p.before != nil {
		if err := p.before(ctx, q); err != nil {
			return nil, err
		}
	}
	page, err := p.Backend.Page(ctx, q)
	p.read <- q
	return page, err
}

// openPaged opens a store with the keys /k/0 to /k/9.
func openPaged(t *testing.T, db dbtest.DB) (*paged, *mvcc.Engine) {
	t.Helper()
	b := &paged{Backend: openBackend(t, db), read: make(chan contract.PageQuery, 100)}
	s, err := mvcc.Open(t.Context(), b, mvcc.Config{})
	if err != nil {
		t.Fatal(err)
	}
	s.KeepAhead(time.Hour)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	for i := range 10 {
		put(t, s, contract.Key(fmt.Sprintf("/k/%d", i)), 0, "old")
	}
	return b, s
}

// turn reads a page, checks that it is the one that begins with a key, and returns the options of
// the next one, and the page's revision and head.
func turn(t *testing.T, s *mvcc.Engine, o mvcc.RangeOptions, first int) (mvcc.RangeOptions,
	*mvcc.RangeResult) {
	t.Helper()
	r, err := s.Range(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	for i, kv := range r.KVs {
		if string(kv.Key) != fmt.Sprintf("/k/%d", first+i) || string(kv.Value) != "old" {
			t.Errorf("key %d of the page is %s: %s", i, kv.Key, kv.Value)
		}
	}
	if want := min(o.Limit, 10-first); len(r.KVs) != want || r.More != (first+want < 10) ||
		r.Count != int64(10-first) {
		t.Errorf("a page has %d keys, %d are left, more: %t", len(r.KVs), r.Count, r.More)
	}
	o.From, o.At = r.KVs[len(r.KVs)-1].Key+"\x00", r.Revision
	return o, r
}

var firstThree = mvcc.RangeOptions{Start: "/k/", End: "/k0", Limit: 3, Count: true, Exact: true,
	Ahead: 3}

// TestPagesAreReadAhead: the second page has the third one read. The third is the same list,
// whatever is written then, and names the newest head.
func TestPagesAreReadAhead(t *testing.T) {
	everywhere(t, func(t *testing.T, db dbtest.DB) {
		b, s := openPaged(t, db)
		o, _ := turn(t, s, firstThree, 0)
		<-b.read
		o, _ = turn(t, s, o, 3)
		<-b.read
		if q := <-b.read; q.Start != o.From || q.At != o.At {
			t.Errorf("%+v was read ahead, not the page from %q", q, o.From)
		}
		put(t, s, "/k/6/new", 0, "new")
		put(t, s, "/k/7", contract.Any, "new")
		_, err := s.Commit(t.Context(), contract.Mutation{Key: "/k/8", Delete: true,
			Expect: contract.Any})
		if err != nil {
			t.Fatal(err)
		}
		head := put(t, s, "/k/9", contract.Any, "new")
		third := o.From
		b.before = func(_ context.Context, q contract.PageQuery) error {
			if q.Start == third {
				t.Error("the third page was read again")
			}
			return nil
		}
		o, r := turn(t, s, o, 6)
		if r.Head != head || r.Revision != o.At {
			t.Errorf("the page is of %d at the head %d, not %d", r.Revision, r.Head, head)
		}
		<-b.read
		if _, r = turn(t, s, o, 9); r.Head != head {
			t.Errorf("the last page is at the head %d, not %d", r.Head, head)
		}
		if len(b.read) > 0 {
			t.Errorf("%+v was read after the end", <-b.read)
		}
	})
}

// TestReadAheadIsNotCompacted: what was read ahead is not answered when its revision was compacted,
// though this process was not told.
func TestReadAheadIsNotCompacted(t *testing.T) {
	b, s := openPaged(t, inMemory(t))
	o, _ := turn(t, s, firstThree, 0)
	o, _ = turn(t, s, o, 3)
	for range 3 {
		<-b.read
	}
	head := put(t, s, "/k/new", 0, "new")
	if _, err := contract.RaiseCompacted(t.Context(), b.Backend, head); err != nil {
		t.Fatal(err)
	}
	if r, err := s.Range(t.Context(), o); !errors.Is(err, contract.ErrCompacted) {
		t.Errorf("a page of a compacted revision: %+v, %v", r, err)
	}
}

// TestReadAheadIsOfOneList: a call that asks otherwise gets what it asks for.
func TestReadAheadIsOfOneList(t *testing.T) {
	_, s := openPaged(t, inMemory(t))
	o, _ := turn(t, s, firstThree, 0)
	o, _ = turn(t, s, o, 3)
	fewer := o
	fewer.Limit = 2
	turn(t, s, fewer, 6)
	keys := o
	keys.KeysOnly = true
	r, err := s.Range(t.Context(), keys)
	if err != nil || len(r.KVs) != 3 || len(r.KVs[0].Value) > 0 {
		t.Errorf("the keys alone: %+v, %v", r, err)
	}
	turn(t, s, o, 6)
}

// TestReadAheadFails: a page that could not be read ahead is read when it is asked for.
func TestReadAheadFails(t *testing.T) {
	b, s := openPaged(t, inMemory(t))
	failed := 0
	b.before = func(_ context.Context, q contract.PageQuery) error {
		if q.Start != "/k/5\x00" {
			return nil
		}
		if failed++; failed > 1 {
			return nil
		}
		return contract.Errorf(contract.Denied, "not now")
	}
	o, _ := turn(t, s, firstThree, 0)
	o, _ = turn(t, s, o, 3)
	if turn(t, s, o, 6); failed != 2 {
		t.Errorf("the page was read %d times", failed)
	}
}

// TestReadAheadHangs: who asks for a page that is being read waits for it, but no longer than the
// context, and not for ever.
func TestReadAheadHangs(t *testing.T) {
	b, s := openPaged(t, inMemory(t))
	var begun, ended atomic.Int64
	b.before = func(ctx context.Context, q contract.PageQuery) error {
		if q.Start != "/k/5\x00" || begun.Add(1) > 2 {
			return nil
		}
		<-ctx.Done() // as on a dead connection
		ended.Add(1)
		return ctx.Err()
	}
	o, _ := turn(t, s, firstThree, 0)
	second := o
	turn(t, s, second, 3)
	o, _ = turn(t, s, second, 3) // what is being read is not read again
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := s.Range(ctx, o)
		done <- err
	}()
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("the call that was cancelled: %v", err)
	}
	if err := mvcc.Poll(t.Context(), func() bool { return ended.Load() == 1 }); err != nil {
		t.Fatal("the read goes on, though nobody wants the page")
	}
	turn(t, s, firstThree, 0)
	turn(t, s, second, 3)
	turn(t, s, o, 6)
	if n := begun.Load(); n != 3 {
		t.Errorf("the page was read %d times: twice ahead, and once when it was asked for", n)
	}
}

// TestReadAheadIsBounded: few pages are kept, none for long, and none if they are large. Close
// waits for them.
func TestReadAheadIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reads := 0
		hold := make(chan string)
		read := func(context.Context, mvcc.RangeOptions) (*mvcc.RangeResult, error) {
			reads++
			return page("", <-hold), nil
		}
		a := mvcc.NewAhead(t.Context(), read)
		// turn turns the first page of a list, whose last piece is smaller, and then the second,
		// and tells whether the third is read now.
		turn := func(list, value string) (started bool) {
			before := reads
			for i, last := range []string{"/1", "/2"} {
				o := mvcc.RangeOptions{From: contract.Key(list), End: "/k0", At: 7, Limit: 1 + i, Ahead: 2}
				a.Turned(o, page(list+last, value))
				list += last + "\x00"
			}
			synctest.Wait()
			return reads > before
		}
		large := strings.Repeat("v", mvcc.AheadBytes+1)
		if turn("/k/large", large) {
			t.Error("the page after a large one is read")
		}
		lists := func(name, value string) {
			t.Helper()
			for i := range mvcc.AheadPages {
				list := fmt.Sprint(name, i)
				if !turn(list, "v") || turn(list, "v") {
					t.Errorf("page %d is not read once", i)
				}
			}
			if turn(name+"more", "v") {
				t.Error("too many pages are read at once")
			}
			for range mvcc.AheadPages {
				hold <- value
			}
			synctest.Wait()
		}
		lists("/k/dropped", large)
		lists("/k/kept", "v")
		if turn("/k/more", "v") {
			t.Error("too many pages are kept")
		}
		<-time.After(mvcc.AheadFor + 1)
		synctest.Wait()
		if !turn("/k/again", "v") {
			t.Error("the pages that nobody has asked for are still kept")
		}
		closed := make(chan struct{})
		go func() {
			a.Close()
			close(closed)
		}()
		synctest.Wait()
		select {
		case <-closed:
			t.Error("a page is read after Close")
		default:
		}
		hold <- "v"
		<-closed
		if turn("/k/closed", "v") {
			t.Error("a page is read after Close")
		}
	})
}

// page is a page of one key, with more to come.
func page(key, value string) *mvcc.RangeResult {
	return &mvcc.RangeResult{More: true, Revision: 7,
		KVs: []mvcc.KeyValue{{Key: contract.Key(key), Value: []byte(value)}}}
}
