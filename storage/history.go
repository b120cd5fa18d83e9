package storage

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	apistorage "k8s.io/apiserver/pkg/storage"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
)

// History asks a list for what the log has of its objects, in the place of the objects that exist.
// The list then has states of objects, in no order that means something, and Tell says what they
// are. They are decrypted and decoded as those of other lists are, and the registry converts them
// as usual. The list's resourceVersion is the head. Its own limit, continue token and selectors do
// not count.
//
// It is for package history, which asks who may know.
type History struct {
	// Resource is whose lists are meant. A registry may list others besides, as it always does.
	Resource string
	// Name is that of one object, in the list's namespace, or "" for all objects of the list.
	Name string
	// At asks for the one state of the object that was in force.
	At *Moment
	// Since and Until bound the changes of a list: they come after Since and not after Until.
	Since, Until *Moment
	// Earlier: states of earlier objects of the same name are wanted, too.
	Earlier bool
	// Limit is how many changes there may be, from 1 to MaxHistory. There may be fewer, and still
	// others beyond.
	Limit int
	// Continue is the token of a page before.
	Continue string
	// Tell is called once, before the list is returned, unless it ends with an error.
	Tell func(HistoryPage)
}

// MaxHistory is the greatest [History.Limit].
const MaxHistory = contract.MaxChain - 1

// Moment is a revision, or if that is 0 a time by the database's clock, or if this is zero a
// duration back from its now.
type Moment struct {
	Revision int64
	Time     time.Time
	Ago      time.Duration
}

// HistoryPage is a part of a history.
type HistoryPage struct {
	// Changes are the newest first.
	Changes []Change
	// Continue is the token for the changes that come next, "" if there are none.
	Continue string
	// Omitted: there are changes of earlier objects, which were not wanted.
	Omitted bool
	// Oldest is the revision from which on the log is whole. Of older changes, it has some.
	Oldest int64
	// Since and Until are the revisions of these moments. Since is 0 if compaction has passed it,
	// so that changes after it may be missing.
	Since, Until int64
}

// Change is a row of the log.
type Change struct {
	// Namespace and Name are those of the object's key.
	Namespace, Name string
	Revision        int64
	Time            time.Time
	// Created and Deleted tell what kind of a change it is. If it is neither, it is an update.
	Created, Deleted bool
	// Earlier: it is not about the object that exists.
	Earlier bool
	// User and AuditID are those of the request, "" if they were not recorded; see Config.Users. A
	// name of more than 512 bytes is cut off, and ends with "…", and so does an ID of more than 64.
	User, AuditID string
	// State is the object after the change, or if that has deleted it, before it. Before is the
	// object before the change, nil if it was created or if that state is gone.
	State, Before *HistoryState
}

// HistoryState is a state of an object.
type HistoryState struct {
	// Revision is the one that has written it, the object's resourceVersion.
	Revision int64
	// Item is which item of the list it is, -1 if it could not be decoded.
	Item int
	// Stored is the state as it is stored, decrypted, if it could not be decoded, nil if it could
	// not be decrypted either. Err says why.
	Stored []byte
	Err    error
}

type historyKey struct{}

// WithHistory makes the lists of a request be those of a history.
func WithHistory(ctx context.Context, h *History) context.Context {
	return context.WithValue(ctx, historyKey{}, h)
}

// historyOf is what a list of the resource has to show.
func (r *objectStore) historyOf(ctx context.Context) *History {
	h, _ := ctx.Value(historyKey{}).(*History)
	if h == nil || h.Resource != r.name.Resource {
		return nil
	}
	return h
}

// history is a list of what the log has.
func (r *objectStore) history(ctx context.Context, key string, opts apistorage.ListOptions,
	list runtime.Object, h *History) error {
	opts.Predicate, opts.ResourceVersion, opts.ResourceVersionMatch = apistorage.Everything, "", ""
	opts.Recursive = h.Name == ""
	if h.Name != "" {
		key += "/" + h.Name
	}
	in, err := r.listRange(key, opts)
	if err != nil {
		return err
	}
	items, err := r.newItems(list, opts.Predicate)
	if err != nil {
		return err
	}
	page, past, err := r.past(ctx, in, h)
	switch {
	case errors.Is(err, contract.ErrCompacted):
		return apierrors.NewResourceExpired("the log has no such state any more: the window of " +
			"compaction has passed it")
	case errors.Is(err, mvcc.ErrOtherEpoch):
		return apierrors.NewResourceExpired("the database has been restored since the first page: " +
			"begin without the continue token")
	case errors.Is(err, mvcc.ErrOtherPlace):
		return apierrors.NewBadRequest("the continue token is not one of this history: begin without " +
			"it")
	case errors.Is(err, mvcc.ErrLongPast):
		return apierrors.NewBadRequest("the state is behind too many changes to be found: ask for " +
			"the changes, page by page")
	case err != nil:
		return r.rangeError(ctx, in, err)
	}
	states := map[contract.RowID]*HistoryState{}
	state := func(id contract.RowID, at contract.Row, value []byte) *HistoryState {
		if states[id] == nil {
			states[id] = items.addState(ctx, &mvcc.KeyValue{Key: at.Key, Revision: id.Revision(),
				Value: value})
		}
		return states[id]
	}
	for i := range past.Rows {
		row := &past.Rows[i]
		c := Change{Revision: int64(row.Revision), Time: row.Time, Earlier: row.Earlier,
			Created: !row.Deleted && row.Version == 1, Deleted: row.Deleted}
		if row.User != nil {
			c.User, c.AuditID = row.User.Name, row.User.AuditID
		}
		c.Namespace, c.Name = r.keys.named(row.Key)
		if row.HasPrev {
			c.Before = state(row.Prev, row.Row, row.PrevValue)
		}
		if c.State = c.Before; !row.Deleted {
			c.State = state(row.ID(), row.Row, row.Value)
		}
		page.Changes = append(page.Changes, c)
		if ctx.Err() != nil {
			return apistorage.NewTimeoutError(key, "the request ended before the history was complete")
		}
	}
	items.finish()
	if err := r.objects.versioner.UpdateList(list, uint64(past.State.Head.Revision), "",
		nil); err != nil {
		return err
	}
	h.Tell(page)
	return nil
}

// past reads the rows, and tells what is known of the page besides them.
func (r *objectStore) past(ctx context.Context, in listRange, h *History) (page HistoryPage,
	past *mvcc.Past, err error) {
	o := mvcc.PastOptions{Limit: h.Limit, Earlier: h.Earlier}
	if h.Continue != "" {
		data, err := base64.RawURLEncoding.DecodeString(h.Continue)
		if err == nil {
			err = json.Unmarshal(data, &o.Place)
		}
		if err != nil || o.Place == (mvcc.PastPlace{}) {
			return page, nil, apierrors.NewBadRequest("the continue token is not one of a history: " +
				"begin without it")
		}
	}
	switch {
	case h.At != nil:
		past, err = r.pastAt(ctx, in.start, h)
	case h.Name != "":
		past, err = r.mvcc.PastOf(ctx, in.start, o)
	default:
		past, err = r.pastIn(ctx, in, o, h, &page)
	}
	if err != nil {
		return page, nil, err
	}
	page.Oldest, page.Omitted = int64(past.State.Compacted)+1, past.Omitted
	if past.Next != nil {
		data, err := json.Marshal(past.Next)
		if err != nil {
			return page, nil, err
		}
		page.Continue = base64.RawURLEncoding.EncodeToString(data)
	}
	return page, past, nil
}

func (r *objectStore) pastAt(ctx context.Context, key contract.Key, h *History) (*mvcc.Past, error) {
	when, err := r.timeOf(ctx, h.At)
	if err != nil {
		return nil, err
	}
	return r.mvcc.PastAt(ctx, key, contract.Revision(h.At.Revision), when, h.Earlier)
}

func (r *objectStore) pastIn(ctx context.Context, in listRange, o mvcc.PastOptions, h *History,
	page *HistoryPage) (*mvcc.Past, error) {
	for _, bound := range []struct {
		of *Moment
		to *contract.Revision
	}{{h.Since, &o.After}, {h.Until, &o.Upto}} {
		if bound.of == nil {
			continue
		}
		*bound.to = contract.Revision(bound.of.Revision)
		if *bound.to != 0 {
			continue
		}
		when, err := r.timeOf(ctx, bound.of)
		if err != nil {
			return nil, err
		}
		if *bound.to, err = r.mvcc.RevisionAt(ctx, when); err != nil {
			return nil, err
		}
	}
	if h.Until != nil && o.Upto == 0 {
		return nil, contract.ErrCompacted
	}
	past, err := r.mvcc.PastIn(ctx, in.start, in.end, o)
	if err != nil {
		return nil, err
	}
	page.Until = int64(o.Upto)
	switch {
	case h.Since == nil || o.After < past.State.Compacted:
	case o.After == 0:
		page.Since = 1 // nothing was compacted, so there was nothing before
	default:
		page.Since = int64(o.After)
	}
	if o.Upto == 0 {
		page.Until = int64(past.State.Head.Revision)
	}
	return past, nil
}

// timeOf is the time of a moment that is no revision.
func (r *objectStore) timeOf(ctx context.Context, m *Moment) (time.Time, error) {
	if m.Revision != 0 || !m.Time.IsZero() {
		return m.Time, nil
	}
	st, err := r.mvcc.State(ctx)
	return st.Now.Add(-m.Ago), err
}

// addState appends a state to the list if it can be decoded.
func (n *items) addState(ctx context.Context, kv *mvcc.KeyValue) *HistoryState {
	s := &HistoryState{Revision: int64(kv.Revision), Item: -1}
	data, _, err := n.r.objects.open(ctx, kv.Key, kv.Revision, kv.Value)
	if err != nil {
		s.Err = fmt.Errorf("it cannot be decrypted: %w", err)
		return s
	}
	if err := n.addOpen(ctx, data, kv.Revision); err != nil {
		s.Stored, s.Err = data, fmt.Errorf("it cannot be decoded: %w", err)
		return s
	}
	s.Item = n.len() - 1
	return s
}
