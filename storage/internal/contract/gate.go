package contract

import (
	"sync"
	"sync/atomic"
	"time"
)

// The stores of a process share connections, and each finds out for itself in which database its
// history goes on (see fence.go of the engine). Each connection knows where it leads since it was
// made, and each store has a Gate, which decides which connections it uses.
//
// An address may lead to another database at any time: after a failover, or a restore. Older
// connections still lead to the old database. Connections are numbered in the order in which they
// were begun, so of two that lead to different places, the one with the higher number tells where
// the address leads. A gate keeps three rules:
//
//   - A store uses a connection that is newer than all that it has used only if that leads to the
//     database of which the store knows, and if its own row says that no commits are lost there
//     ([Durability.Continues]). If not, the answer is Fenced, and the store fences there, or finds
//     that another process has done so. Other stores may use the connection.
//   - It uses an older connection only if that leads to the same place as the newest one. So a
//     store that has gone over to another server is never led back by a connection that was made
//     before, and a store that has not gone over is not led there by one that another store uses.
//   - After [Gate.Reconnect] it uses only connections that are begun from then on, and after
//     [Address.Leave] no store uses others.
//
// A poll of several stores (see polls.go of the engine) takes a connection that none of them finds
// too old. Each store whose gate asks for its row finds that in the same answer, and uses the
// answer only if [Gate.Let] lets it.
//
// All of that needs a connection that is begun. A server that is not the primary any more, and does
// not know it, answers on the connections that are there as it always did: it says that it takes
// writes, and nothing tells that it is alone. So the connections by which stores are polled are
// replaced when they are [PollLifetime] old. If the address leads elsewhere by then, the new
// connection tells, and the first rule does the rest.
//
// A proxy may lead a connection that is there to another server, where the clients' connections
// outlive the servers' (a pooler in transaction mode, for one). So each answer carries what tells
// its server from others, and so does each statement that takes the commit lock, before the work.
// If that is not what the connection found when it was made, the error is [ErrAnotherServer], and
// [Address.Leave] is told.
//
// A connection that is too old for one store is closed, also if others would still use it: they
// find the same as with any connection that is lost. A store reads its row once for each connection
// that is newer. On the connections that are there it compares two values in memory.

// Place is where a connection leads, as it found when it was made.
type Place struct {
	// Fingerprint is that of the database; see [Identity].
	Fingerprint string
	// Boot and Relaxed are those of the server; see [Durability].
	Boot    string
	Relaxed bool
}

// Passage says what a store does with a connection.
type Passage int

const (
	// Pass: the store uses it.
	Pass Passage = iota
	// Ask: the store reads its row on it, and calls [Gate.Enter].
	Ask
	// Stale: it is closed, and the store takes another one.
	Stale
)

// The stores of a process share CommitConns connections to write. A store has one commit under way,
// and some transactions beside it, of leases for one. It has or waits for StoreConns of the
// connections at most, so that one whose row is locked for long leaves the others some.
const (
	CommitConns = 8
	StoreConns  = 3
)

// PollLifetime is the age at which a connection by which stores are polled is replaced, however old
// the others may become. It bounds how long a process that only reads can believe a server to which
// the address does not lead any more. It costs a connection now and then, of the few that poll.
const PollLifetime = time.Minute

// Address numbers the connections that are begun to where a database's URL leads: above 0, in the
// order in which they are begun. It is shared by the stores of the database. The zero value is
// ready.
type Address struct {
	begun, from atomic.Int64
	// mu protects the field below.
	mu sync.Mutex
	// left is when from was raised last.
	left time.Time
}

// Begin returns the number of a connection that is about to be begun.
func (a *Address) Begin() int64 { return a.begun.Add(1) }

// Begun is the number of the connection that was begun last.
func (a *Address) Begun() int64 { return a.begun.Load() }

// Leave is told when a server has answered that it is read-only: it was demoted, perhaps, and the
// address leads to another one by now. It is also told of [ErrPrivilege]: the user was replaced,
// perhaps, and new connections log in as another one. And it is told of [ErrAnotherServer]. So the
// connections that were begun before are not used again. That happens once a second at most, if the
// answer stays the same.
func (a *Address) Leave(now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if now.Sub(a.left) > time.Second {
		a.left = now
		a.from.Store(a.Begun() + 1)
	}
}

// uses tells whether a connection may still be used. Without an address, all may.
func (a *Address) uses(number int64) bool { return a == nil || number >= a.from.Load() }

// Gate decides which connections a store uses.
type Gate struct {
	// Address is where the connections lead. It is set before the first use.
	Address *Address
	// mu protects the fields below.
	mu sync.Mutex
	// store is the identity of the store that was opened.
	store string
	// at is where the store's history goes on, and newest the number of the newest connection that
	// leads there.
	at     Place
	newest int64
	// from is the lowest number that the store uses.
	from int64
}

// Open lets a store begin at the place of a connection on which it was found, wherever that is: the
// store compares the fingerprints and the boots itself.
func (g *Gate) Open(p Place, number int64, store string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.at, g.newest, g.store = p, number, store
}

// Judge decides about a connection.
func (g *Gate) Judge(p Place, number int64) Passage {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case number < g.from, !g.Address.uses(number):
		return Stale
	case number > g.newest:
		return Ask
	case p == g.at:
		return Pass
	}
	return Stale
}

// Enter decides about a connection on which the row of a store was found by its number, which says
// the store's identity and d. The error is [ErrAnotherStore] if another one has the number there
// than the one that was opened, and of class Fenced if the history does not go on there. It is nil
// with Stale if the store has gone elsewhere meanwhile, by a newer connection.
func (g *Gate) Enter(p Place, number int64, store string, d Durability) (Passage, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case store != g.store:
		return Ask, AnotherStore(store, g.store)
	case number < g.from, !g.Address.uses(number), number < g.newest && p != g.at:
		return Stale, nil
	case p.Fingerprint != g.at.Fingerprint:
		return Ask, Errorf(Fenced, "the database is not the one that this store was in (it was "+
			"restored, copied or failed over): it was %q, and is %q", g.at.Fingerprint,
			p.Fingerprint)
	case !d.Continues(g.at):
		return Ask, Errorf(Fenced, "the server was restarted, or its settings have changed, and "+
			"it confirms or confirmed commits before they are on the disk: some may be lost "+
			"(recorded start %q, now %q)", d.Recorded, d.Boot)
	}
	g.at, g.newest = p, max(g.newest, number)
	return Pass, nil
}

// Let decides about a connection on which the store has read its row together with what it wants to
// use. The row says the same as for [Gate.Enter]. The error is nil if what was read may be used.
func (g *Gate) Let(p Place, number int64, store string, d Durability) error {
	passage, err := g.Judge(p, number), error(nil)
	if passage == Ask {
		passage, err = g.Enter(p, number, store, d)
	}
	if err == nil && passage == Stale {
		err = Errorf(Transient, "the store goes on over a newer connection")
	}
	return err
}

// Fenced lets the store go on where it was fenced, on a connection of this number, and only there,
// also if the address has led back meanwhile. The boot is not settled by that: the store records it
// afterwards, so all connections that are not older are asked.
func (g *Gate) Fenced(fingerprint string, number int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.at.Fingerprint, g.newest = fingerprint, number-1
}

// Reconnect makes the store use only connections that are begun from now on.
func (g *Gate) Reconnect() {
	begun := g.Address.Begun()
	g.mu.Lock()
	defer g.mu.Unlock()
	g.from = max(g.from, begun+1)
}
