package contract

import (
	"errors"
	"testing"
	"time"
)

// TestGate: a store asks each connection that is newer than all that it has used, goes on with the
// older ones that lead to the same place, and closes the ones that lead elsewhere.
func TestGate(t *testing.T) {
	here := Place{Fingerprint: "here", Boot: "first"}
	there := Place{Fingerprint: "there", Boot: "first"}
	a := &Address{}
	g := Gate{Address: a}
	judge := func(what string, p Place, number int64, want Passage) {
		t.Helper()
		if got := g.Judge(p, number); got != want {
			t.Errorf("%s: %d, want %d", what, got, want)
		}
	}
	enter := func(what string, p Place, number int64, boot string, want Passage, class Class) {
		t.Helper()
		got, err := g.Enter(p, number, "",
			Durability{Boot: p.Boot, Relaxed: p.Relaxed, Recorded: boot})
		if err != nil && ClassOf(err) != class || err == nil && (class != 0 || got != want) {
			t.Errorf("%s: %d, %v, want %d, %v", what, got, err, want, class)
		}
	}
	g.Open(here, 5, "")
	judge("the connection on which the store was opened", here, 5, Pass)
	judge("an older one", here, 3, Pass)
	judge("an older one to another place", there, 4, Stale)
	judge("a newer one", here, 6, Ask)
	enter("a newer one", here, 6, "", Pass, 0)
	judge("the newer one again", here, 6, Pass)

	// The address leads to another database.
	judge("another database", there, 8, Ask)
	enter("another database", there, 8, "", Ask, Fenced)
	judge("the old one meanwhile", here, 6, Pass)
	judge("another connection to the old one", here, 7, Ask)
	enter("another connection to the old one", here, 7, "", Pass, 0)
	g.Fenced("there", 9)
	judge("the old database after the fence", here, 7, Stale)
	judge("a connection from before the fence", there, 8, Pass)
	judge("a newer connection", there, 10, Ask)
	enter("a newer connection", there, 10, "", Pass, 0)
	judge("what was begun before the newest", here, 9, Stale)
	judge("what leads to the new place", there, 9, Pass)
	enter("what was overtaken while it was asked", here, 9, "", Stale, 0)

	// It leads back.
	enter("what the store has left", here, 11, "", Ask, Fenced)
	g.Fenced("here", 12)
	enter("what it has left, after a fence", here, 13, "", Pass, 0)
	judge("the place before", there, 10, Stale)

	// The server is restarted, and may have lost commits.
	again := Place{Fingerprint: "here", Boot: "second", Relaxed: true}
	enter("a restart that may have lost commits", again, 14, "first", Ask, Fenced)
	g.Fenced("here", 15)
	enter("after the fence, before the boot is recorded", again, 16, "first", Ask, Fenced)
	enter("when the boot is recorded", again, 16, "second", Pass, 0)
	judge("the connections of the first boot", here, 13, Stale)

	for a.Begin() < 16 {
	}
	g.Reconnect()
	judge("what was begun before", again, 16, Stale)
	enter("what was begun before, if it was asked then", again, 16, "second", Stale, 0)
	judge("what is begun from then on", again, 17, Ask)
}

// TestGateOpen: a store is opened wherever it is found, and goes on there, since it compares the
// fingerprints itself.
func TestGateOpen(t *testing.T) {
	var g Gate
	moved := Place{Fingerprint: "there", Boot: "second"}
	g.Open(moved, 1, "")
	p, err := g.Enter(moved, 2, "", Durability{Boot: "second", Recorded: "first"})
	if p != Pass || err != nil {
		t.Errorf("%d, %v", p, err)
	}
}

// TestGateWhileTheAddressFlaps: a store that was fenced in one database does not go on in the other
// one by a connection that was begun after the fence.
func TestGateWhileTheAddressFlaps(t *testing.T) {
	here, there := Place{Fingerprint: "here"}, Place{Fingerprint: "there"}
	var g Gate
	g.Open(here, 1, "")
	if p, err := g.Enter(here, 3, "", Durability{}); p != Pass || err != nil {
		t.Fatalf("%d, %v", p, err)
	}
	g.Fenced("there", 2)
	if p := g.Judge(there, 2); p == Stale {
		t.Error("the connection of the fence is stale")
	}
	if p := g.Judge(here, 3); p == Pass {
		t.Error("the store goes on where it was not fenced")
	}
	if _, err := g.Enter(here, 3, "", Durability{}); ClassOf(err) != Fenced {
		t.Errorf("the store goes on where it was not fenced: %v", err)
	}
}

// TestGateOfAnotherStore: a store that was dropped does not go on in the one that took its place,
// on any connection that it has to ask.
func TestGateOfAnotherStore(t *testing.T) {
	here := Place{Fingerprint: "here"}
	var g Gate
	g.Open(here, 1, "opened")
	p, err := g.Enter(here, 2, "another", Durability{})
	if p == Pass || !errors.Is(err, ErrAnotherStore) {
		t.Errorf("%d, %v", p, err)
	}
	if p := g.Judge(here, 2); p != Ask {
		t.Errorf("the connection is %d after it was refused, want %d", p, Ask)
	}
	if p, err := g.Enter(here, 3, "opened", Durability{}); p != Pass || err != nil {
		t.Errorf("%d, %v", p, err)
	}
}

// TestGateLets: what was read together with the store's row is used only where the store's history
// goes on.
func TestGateLets(t *testing.T) {
	here, there := Place{Fingerprint: "here"}, Place{Fingerprint: "there"}
	var g Gate
	g.Open(here, 5, "store")
	for _, c := range []struct {
		what   string
		place  Place
		number int64
		found  string
		refuse bool
		class  Class
	}{
		{"the connection on which it was opened", here, 5, "store", false, 0},
		{"an older one", here, 3, "store", false, 0},
		{"an older one to another place", there, 4, "store", true, Transient},
		{"a newer one to another place", there, 6, "store", true, Fenced},
		{"a newer one to another store", here, 7, "another", true, Invalid},
		{"a newer one", here, 8, "store", false, 0},
		{"what was begun before that, to another place", there, 6, "store", true, Transient},
	} {
		err := g.Let(c.place, c.number, c.found, Durability{})
		if c.refuse != (err != nil) || err != nil && ClassOf(err) != c.class {
			t.Errorf("%s: %v", c.what, err)
		}
	}
	if got := g.Judge(here, 8); got != Pass {
		t.Errorf("after it was let in, the store is to do %d", got)
	}
}

// TestReadOnlyServer: when a server has said that it is read-only, no store uses a connection that
// was begun before. That happens once a second, however often and on however many connections it is
// said.
func TestReadOnlyServer(t *testing.T) {
	here := Place{Fingerprint: "here"}
	a := &Address{}
	stores := [2]Gate{{Address: a}, {Address: a}}
	number := a.Begin()
	for i := range stores {
		stores[i].Open(here, number, "")
	}
	judge := func(what string, number int64, want Passage) {
		t.Helper()
		for i := range stores {
			if got := stores[i].Judge(here, number); got != want {
				t.Errorf("%s: %d, want %d", what, got, want)
			}
		}
	}
	judge("before", number, Pass)
	now := time.Unix(1_700_000_000, 0)
	a.Leave(now)
	judge("what was begun before", number, Stale)
	if p, err := stores[0].Enter(here, number, "", Durability{}); p != Stale || err != nil {
		t.Errorf("what was asked meanwhile: %d, %v", p, err)
	}
	newer := a.Begin()
	judge("what is begun after it", newer, Ask)
	a.Leave(now.Add(time.Second))
	judge("within a second", newer, Ask)
	a.Leave(now.Add(time.Second + 1))
	judge("after a second", newer, Stale)
}
