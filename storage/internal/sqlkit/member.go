package sqlkit

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// Link is a connection to a server. It has found out when it was made where it leads.
type Link interface {
	// Leads tells where that is, and the number that [contract.Address] gave it.
	Leads() (place contract.Place, number int64, err error)
	// Release gives it back.
	Release()
	// Discard closes it.
	Discard(ctx context.Context)
}

// Pool hands out links.
type Pool[L Link] interface {
	Get(ctx context.Context) (L, error)
}

// Member is a store among the stores that share the connections of a process.
type Member[L Link] struct {
	// ID is the number of the store, which the rows of its tables have.
	ID int64

	row     func(context.Context, L) (contract.Identity, contract.Durability, error)
	opened  contract.Identity
	durable contract.Durability
	// gate decides which connections the store uses.
	gate contract.Gate
	// writing has an element for each of the connections to write that the store has or waits for.
	writing chan struct{}
}

// NewMember makes the member for a store. row reads the row of the store wherever a link leads.
func NewMember[L Link](a *contract.Address, row func(context.Context, L) (contract.Identity,
	contract.Durability, error)) *Member[L] {
	return &Member[L]{row: row, gate: contract.Gate{Address: a},
		writing: make(chan struct{}, contract.StoreConns)}
}

// Found says what was found of the store when it was opened, and on which link.
func (m *Member[L]) Found(l L, store int64, id contract.Identity, d contract.Durability) error {
	place, number, err := l.Leads()
	m.ID, m.opened, m.durable = store, id, d
	m.gate.Open(place, number, id.Store)
	return err
}

// Opened implements [contract.Opened].
func (m *Member[L]) Opened() (contract.Identity, contract.Durability) { return m.opened, m.durable }

// Reconnect implements [contract.Reconnector].
func (m *Member[L]) Reconnect() { m.gate.Reconnect() }

// Fenced says that the store was fenced over the link of a number, and goes on at its place.
func (m *Member[L]) Fenced(p contract.Place, number int64) { m.gate.Fenced(p.Fingerprint, number) }

// Heard passes an error on, and notes what says that the connections are of no use any more.
func (m *Member[L]) Heard(err error) error {
	if useless(err) {
		m.leave()
	}
	return err
}

// useless tells whether a server's answer says that other connections may be of more use.
func useless(err error) bool {
	return err != nil && (contract.ClassOf(err) == contract.ReadOnly ||
		errors.Is(err, contract.ErrPrivilege) || errors.Is(err, contract.ErrAnotherServer))
}

func (m *Member[L]) leave() { m.gate.Address.Leave(time.Now()) }

// Take takes a link of a pool on which the store may run; see [contract.Gate]. Its errors are those
// of the pool, of the link, and of the gate.
func (m *Member[L]) Take(ctx context.Context, pool Pool[L]) (none L, err error) {
	for {
		l, err := pool.Get(ctx)
		if err != nil {
			return none, err
		}
		passage, err := m.judge(ctx, l)
		switch {
		case err != nil:
			l.Release()
			return none, err
		case passage == contract.Pass:
			return l, nil
		}
		l.Discard(ctx)
	}
}

// judge decides whether the store uses a link.
func (m *Member[L]) judge(ctx context.Context, l L) (contract.Passage, error) {
	place, number, err := l.Leads()
	if err != nil {
		return contract.Stale, err
	}
	passage := m.gate.Judge(place, number)
	if passage != contract.Ask {
		return passage, nil
	}
	id, d, err := m.row(ctx, l)
	if err != nil {
		return passage, err
	}
	return m.gate.Enter(place, number, id.Store, d)
}

// TakeToWrite is Take for a transaction that writes; see [contract.StoreConns].
func (m *Member[L]) TakeToWrite(ctx context.Context, pool Pool[L]) (l L, release func(),
	err error) {
	select {
	case m.writing <- struct{}{}:
	case <-ctx.Done():
		return l, nil, ctx.Err()
	}
	if l, err = m.Take(ctx, pool); err != nil {
		<-m.writing
		return l, nil, err
	}
	return l, func() { l.Release(); <-m.writing }, nil
}

func (m *Member[L]) member() *Member[L] { return m }

// Poll polls stores as [contract.Shared] says. Their backends have members.
//
// ask runs the statement, for stores by their IDs, the first due of them with their expiry, and
// calls each for its rows. Columns besides those of the state: the ID, the identity and the boot of
// the store's row, the quota's objects and bytes, the expiry that comes first. That is the largest
// int64 if there is none, or if it was not asked for.
func Poll[L Link](ctx context.Context, a *contract.Address, pool Pool[L], stores []contract.Backend,
	due int, ask func(l L, ids []int64, due int, each func(Cursor)) error) ([]contract.Polled, error) {
	polled, members := make([]contract.Polled, len(stores)), make([]*Member[L], len(stores))
	ids, places := make([]int64, 0, len(stores)), make(map[int64][]int, len(stores))
	wanted := 0
	for i, b := range stores {
		m := b.(interface{ member() *Member[L] }).member()
		members[i], polled[i].Err = m, contract.ErrEmptyStore
		if places[m.ID] == nil { // a store may be open twice
			ids = append(ids, m.ID)
			if i < due {
				wanted++
			}
		}
		places[m.ID] = append(places[m.ID], i)
	}
	l, err := takeForAll(ctx, a, pool, members)
	if err != nil {
		return nil, err
	}
	defer l.Release()
	place, number, err := l.Leads()
	if err != nil {
		return nil, err
	}
	err = ask(l, ids, wanted, func(c Cursor) {
		for _, i := range places[c.Int(0)] {
			members[i].polled(c, place, number, &polled[i])
		}
	})
	if useless(err) {
		a.Leave(time.Now())
	}
	return polled, err
}

// takeForAll takes a link that is not too old for any of the stores; see [contract.Gate]. If even
// one that was begun meanwhile is too old, the stores have to ask by themselves.
func takeForAll[L Link](ctx context.Context, a *contract.Address, pool Pool[L],
	members []*Member[L]) (none L, err error) {
	for begun := a.Begun(); ; {
		l, err := pool.Get(ctx)
		if err != nil {
			return none, err
		}
		place, number, err := l.Leads()
		if err != nil {
			l.Release()
			return none, err
		}
		stale := false
		for _, m := range members {
			stale = stale || m.gate.Judge(place, number) == contract.Stale
		}
		if !stale {
			return l, nil
		}
		l.Discard(ctx)
		if number > begun {
			return none, contract.ErrStaleConnection
		}
	}
}

// polled sets the answer to the poll of a store, from its row.
func (m *Member[L]) polled(c Cursor, place contract.Place, number int64, p *contract.Polled) {
	p.Err = m.gate.Let(place, number, string(c.Key(1)),
		contract.Durability{Boot: place.Boot, Relaxed: place.Relaxed, Recorded: string(c.Key(2))})
	if p.Err != nil {
		return
	}
	if !c.State(&p.State) {
		p.Err = contract.ErrEmptyStore
		return
	}
	if !p.State.Writable {
		m.leave()
	}
	p.Quota, p.Due = contract.Quota{Objects: c.Int(3), Bytes: c.Int(4)}, contract.Never
	p.Generation = c.Int(6)
	if expiry := c.Int(5); expiry != math.MaxInt64 {
		p.Due = p.State.DueIn(expiry)
	}
}
