package storage

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	apistorage "k8s.io/apiserver/pkg/storage"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
)

// Sort asks for a list in another order than that of the keys: that of an index of the resource. A
// list has only objects of which the index has something: one of a label has those with the label.
// Objects with the same value are in the order of their keys.
//
// The pages of a list are one snapshot, as those of others are. A page costs what it has, and what
// was changed since the first one. Of a selector that takes few objects, the list looks at those
// that an index finds, if there is one, and otherwise at all on its way.
type Sort struct {
	// By is the name of the index; see [Index].
	By string
	// Descending begins with the greatest value.
	Descending bool
	// Pages, if not nil, is told the tokens of the page before and of the page after this one, ""
	// if there is none, before the list is returned. The list itself has the latter as its continue
	// token.
	Pages func(before, after string)
}

type sortKey struct{}

// WithSort makes the lists of a request sorted. Without it, lists are in the order of the keys.
func WithSort(ctx context.Context, s *Sort) context.Context {
	return context.WithValue(ctx, sortKey{}, s)
}

func sortOf(ctx context.Context) *Sort {
	s, _ := ctx.Value(sortKey{}).(*Sort)
	return s
}

// cursor is where a page begins, as a token says it. The token of an index that was built anew
// since holds on: it has no ID.
type cursor struct {
	// By and Descending are those of the list that the cursor is for.
	By         string `json:"by"`
	Descending bool   `json:"desc,omitempty"`
	// Revision is that of all pages.
	Revision contract.Revision `json:"rv"`
	// Before is for the page that ends before the place. Others begin after it. What is at the
	// place belongs to the page only if Including.
	Before    bool `json:"before,omitempty"`
	Including bool `json:"including,omitempty"`
	// Said and Key are the place: what the entry says, and the key below that of the list.
	Said []byte `json:"said"`
	Key  []byte `json:"key"`
}

func (c cursor) token() string {
	data, err := json.Marshal(c)
	if err != nil {
		panic(err) // it has nothing that cannot be encoded
	}
	return base64.RawURLEncoding.EncodeToString(data)
}

// cursorOf reads a token of a list that is sorted so.
func cursorOf(token string, by *Sort) (c cursor, err error) {
	data, err := base64.RawURLEncoding.DecodeString(token)
	if err == nil {
		err = json.Unmarshal(data, &c)
	}
	switch {
	case err != nil || c.Revision <= 0 || c.By == "":
		return c, apierrors.NewBadRequest("the continue token is not one of a sorted list: begin " +
			"without it")
	case c.By != by.By || c.Descending != by.Descending:
		return c, apierrors.NewBadRequest(fmt.Sprintf("the continue token is one of a list that is "+
			"sorted by %s: begin without it, or sort as before", c.By))
	}
	return c, nil
}

// sorted is a list in the order of an index.
func (r *objectStore) sorted(ctx context.Context, key string, opts apistorage.ListOptions,
	listObj runtime.Object, by *Sort) error {
	token := opts.Predicate.Continue
	opts.Predicate.Continue = ""
	in, err := r.listRange(key, opts)
	if err != nil {
		return err
	}
	p := &sortedPage{r: r, by: by, in: in, backwards: by.Descending, revision: in.at}
	if token != "" {
		c, err := cursorOf(token, by)
		if err != nil {
			return err
		}
		p.revision, p.before, p.backwards = c.Revision, c.Before, by.Descending != c.Before
		p.began = &sortedPlace{string(c.Said), in.start + contract.Key(c.Key)}
		p.including = c.Including
	}
	if p.items, err = r.newItems(listObj, opts.Predicate); err != nil {
		return err
	}
	if err := p.read(ctx); errors.Is(err, contract.ErrCompacted) {
		return apierrors.NewResourceExpired("the state that the pages of the list show is gone: begin " +
			"without the continue token")
	} else if errors.Is(err, mvcc.ErrMuchUnknown) {
		return apierrors.NewServiceUnavailable(fmt.Sprintf("the index %s of %s does not know what many "+
			"objects say: rowkeeper indexes rebuild has them read", by.By, resourceName(r.name)))
	} else if err != nil {
		return r.rangeError(ctx, in, err)
	}
	if p.began == nil && in.at == 0 {
		if err := r.notOlderThan(opts.ResourceVersion, p.revision); err != nil {
			return err
		}
	}
	if err := p.items.errs.err(); err != nil {
		return err
	}
	before, after := p.finish()
	if by.Pages != nil {
		by.Pages(before, after)
	}
	if err := r.objects.versioner.UpdateList(listObj, uint64(p.revision), after, nil); err != nil {
		return err
	}
	opts.Predicate.SetShardInfoOnList(listObj)
	return nil
}

// sortedPage is a page of a sorted list while it is read.
type sortedPage struct {
	r  *objectStore
	by *Sort
	in listRange
	// backwards is the direction in which the index is read. A page before another one is read
	// against the list's order, and turned round.
	backwards, before bool
	// began is where the page begins, nil for the first. What is there belongs to it if including.
	began     *sortedPlace
	including bool
	revision  contract.Revision
	items     *items
	// first and last are the places of what was looked at, in the order of reading, and more tells
	// that places follow.
	first, last *sortedPlace
	more        bool
}

// sortedPlace is a place in an index, whichever ID that has.
type sortedPlace struct {
	said string
	key  contract.Key
}

func placeOf(row contract.IndexRow) *sortedPlace {
	said, _ := row.Entry.SaysValue()
	return &sortedPlace{said, row.Key}
}

// index returns the index that is to be used, and the generation of the declarations.
func (p *sortedPage) index(ctx context.Context) (*contract.Index, int64, error) {
	if p.by.By == ownersIndex { // an object may have several
		return nil, 0, apierrors.NewBadRequest(fmt.Sprintf("%s cannot be sorted by owners",
			resourceName(p.r.name)))
	}
	for _, x := range []func() (*contract.Indexes, error){
		func() (*contract.Indexes, error) { return p.r.mvcc.Indexes(), nil },
		// This server may hear of it late.
		func() (*contract.Indexes, error) { return p.r.mvcc.RefreshIndexes(ctx) },
	} {
		x, err := x()
		if err != nil {
			return nil, 0, err
		}
		for _, d := range x.In(p.r.keys.all()) {
			if d.Name == p.by.By && d.State == contract.IndexReady && p.r.ours(d) {
				return d, x.Generation, nil
			}
		}
	}
	if slices.ContainsFunc(p.r.mvcc.Indexes().In(p.r.keys.all()),
		func(d *contract.Index) bool { return d.Name == p.by.By }) {
		return nil, 0, apierrors.NewServiceUnavailable(fmt.Sprintf("the index %s of %s is being built: "+
			"try again later", p.by.By, resourceName(p.r.name)))
	}
	return nil, 0, apierrors.NewBadRequest(fmt.Sprintf("%s cannot be sorted by %q, of which there is "+
		"no index: rowkeeper indexes add declares one", resourceName(p.r.name), p.by.By))
}

// read fills the page.
func (p *sortedPage) read(ctx context.Context) error {
	rows := p.in.page(0, 0, 0)
	for after := p.began; ; {
		d, generation, err := p.index(ctx)
		if err != nil {
			return err
		}
		o := mvcc.SortOptions{Start: p.in.start, End: p.in.end, At: p.revision, Generation: generation,
			Index: d.ID, Backwards: p.backwards, Limit: rows,
			Entry: func(kv *mvcc.KeyValue) (contract.Entry, bool) {
				obj, err := p.r.decodeStored(ctx, kv)
				return p.entry(d, obj, err)
			}}
		if after != nil {
			o.After = &contract.IndexRow{Entry: contract.EntrySaying(d.ID, after.said), Key: after.key}
			o.Including = p.including && after == p.began
		}
		var found *mvcc.Sorted
		if p.first == nil {
			found, err = p.few(ctx, o, d)
		}
		if found == nil && err == nil {
			found, err = ask(ctx, p.r, "list", func() (*mvcc.Sorted, error) {
				return p.r.mvcc.Sorted(ctx, o)
			})
		}
		if errors.Is(err, contract.ErrOtherIndexes) {
			if _, err = p.r.mvcc.RefreshIndexes(ctx); err == nil {
				continue
			}
		}
		if err != nil {
			return err
		}
		p.revision = found.Revision
		if full, err := p.take(ctx, found); err != nil || full || !found.More {
			return err
		}
		if after = placeOf(found.Last); p.in.filtered {
			rows = min(2*rows, chunkRows)
		}
	}
}

// few reads the objects that another index finds, if they are few, and of these what the selector
// takes. It returns nil if there is no such index.
func (p *sortedPage) few(ctx context.Context, o mvcc.SortOptions, d *contract.Index) (*mvcc.Sorted,
	error) {
	in := p.in
	by, err := p.r.byIndex(ctx, &in, &p.items.pred, beyondCache)
	if err != nil || by == nil {
		return nil, err
	}
	in.by, in.at, in.limit = by, p.revision, 0
	o.Limit = cmp.Or(p.in.limit, maxLimit)
	found := mvcc.NewSorted(&o)
	for chunk, err := range p.r.chunks(ctx, in) {
		if err != nil {
			return nil, err
		}
		found.Revision = chunk.Revision
		for _, kv := range chunk.KVs {
			obj, err := p.r.decodeStored(ctx, &kv)
			if err == nil {
				if ok, err := p.items.pred.Matches(obj); !ok || err != nil {
					continue
				}
			}
			if entry, ok := p.entry(d, obj, err); ok {
				found.Add(contract.IndexRow{Entry: entry, Key: kv.Key}, kv)
			}
		}
	}
	found.Sort()
	return found, nil
}

// entry is what the index has of an object, and false if it has nothing. What cannot be decoded is
// where an empty value is: when a page comes to it, the list says what is wrong, as others do.
func (p *sortedPage) entry(d *contract.Index, obj runtime.Object, err error) (contract.Entry, bool) {
	if err != nil {
		return contract.ValueEntry(d.ID, ""), true
	}
	entries, _ := p.r.entriesUnder([]*contract.Index{d}, obj)
	for _, e := range entries {
		if _, ok := e.SaysValue(); ok {
			return e, true
		}
	}
	return "", false
}

// take adds objects until the page is full.
func (p *sortedPage) take(ctx context.Context, found *mvcc.Sorted) (full bool, err error) {
	kvs := make([]mvcc.KeyValue, len(found.Keys))
	for i := range kvs {
		kvs[i] = found.Keys[i].KeyValue
	}
	taken, err := p.items.add(ctx, kvs)
	if taken > 0 {
		if p.first == nil {
			p.first = placeOf(found.Keys[0].Row)
		}
		p.last = placeOf(found.Keys[taken-1].Row)
	}
	p.more = found.More || taken < len(kvs)
	return p.items.full(), err
}

// finish returns the tokens of the pages before and after this one.
func (p *sortedPage) finish() (before, after string) {
	first, last := p.first, p.last
	empty := first == nil
	if empty { // nothing follows where the page begins: there the others end
		first, last = p.began, p.began
	}
	token := func(there bool, at *sortedPlace, back bool) string {
		if !there || at == nil {
			return ""
		}
		return cursor{By: p.by.By, Descending: p.by.Descending, Revision: p.revision, Before: back,
			Including: empty, Said: []byte(at.said), Key: []byte(at.key[len(p.in.start):])}.token()
	}
	p.items.finish()
	if !p.before {
		return token(p.began != nil, first, true), token(p.more, last, false)
	}
	n, swap := p.items.len(), reflect.Swapper(p.items.slice.Interface())
	for i := range n / 2 {
		swap(i, n-1-i)
	}
	return token(p.more, last, true), token(true, first, false)
}
