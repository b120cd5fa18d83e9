package mvcc_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/dbtest"
)

// TestExcess: what a store has reached of its quota decides what is refused.
func TestExcess(t *testing.T) {
	bytes, objects := contract.Quota{Bytes: 9}, contract.Quota{Objects: 9}
	for name, test := range map[string]struct {
		quota   contract.Quota
		usage   contract.Usage
		creates bool
		growth  int
		want    string
	}{
		"no quota":        {contract.Quota{}, contract.Usage{Objects: 9, Bytes: 9}, true, 9, ""},
		"fewer bytes":     {bytes, contract.Usage{Objects: 9, Bytes: 8}, true, 9, ""},
		"fewer objects":   {objects, contract.Usage{Objects: 8, Bytes: 9}, true, 9, ""},
		"objects, create": {objects, contract.Usage{Objects: 9, Bytes: 9}, true, 0, "objects"},
		"objects, grow":   {objects, contract.Usage{Objects: 9, Bytes: 9}, false, 9, ""},
		"bytes, create":   {bytes, contract.Usage{Objects: 9, Bytes: 9}, true, 0, "bytes"},
		"bytes, grow":     {bytes, contract.Usage{Objects: 9, Bytes: 10}, false, 1, "bytes"},
		"bytes, keep":     {bytes, contract.Usage{Objects: 9, Bytes: 10}, false, 0, ""},
		"bytes, shrink":   {bytes, contract.Usage{Objects: 9, Bytes: 10}, false, -1, ""},
	} {
		var err error
		if e := contract.ExcessOf(test.quota, test.usage); e != nil {
			err = e.Refuses(test.creates, test.growth)
		}
		var got string
		var quota *contract.QuotaError
		if errors.As(err, &quota) {
			got = quota.What
		}
		if got != test.want || (err == nil) != (test.want == "") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestEarlyBoundary: history is let go of up to where the rest is as small as it may be.
func TestEarlyBoundary(t *testing.T) {
	for name, test := range map[string]struct {
		pieces    [][2]int64
		compacted contract.Revision
		want      contract.Revision
	}{
		"nothing":             {nil, 0, 0},
		"as much as may be":   {[][2]int64{{10, 600}, {20, 40}}, 0, 0},
		"more":                {[][2]int64{{10, 600}, {20, 41}}, 0, 10},
		"much more":           {[][2]int64{{10, 600}, {20, 600}, {30, 600}}, 0, 20},
		"one piece":           {[][2]int64{{10, 641}}, 0, 10},
		"compacted":           {[][2]int64{{10, 600}, {20, 600}}, 10, 0},
		"not yet compacted":   {[][2]int64{{10, 600}, {20, 600}}, 9, 10},
		"small pieces":        {[][2]int64{{10, 5}, {20, 5}, {30, 631}}, 0, 20},
		"nothing is replaced": {[][2]int64{{10, 640}, {20, 0}, {30, 0}}, 0, 0},
	} {
		var history []contract.Aged
		for _, p := range test.pieces {
			history = contract.Age(history, contract.Aged{Until: contract.Revision(p[0]), Bytes: p[1]},
				test.compacted, 640)
		}
		if got := contract.EarlyBoundary(history, 640); got != test.want {
			t.Errorf("%s: %d, want %d", name, got, test.want)
		}
	}
	for rows, least := range map[int64]int64{0: 20, 20: 20, 19: 20, 500: 500} {
		if p := contract.PieceOf(10, 30, contract.Growth{Replaced: 5, Rows: rows}); p.Until != 30 ||
			p.Bytes < 5+least*64 || p.Bytes > 5+least*256 {
			t.Errorf("%d rows at 20 revisions, which have replaced 5 bytes, are %+v", rows, p)
		}
	}
	var history []contract.Aged
	for r := range contract.Revision(100_000) {
		history = contract.Age(history, contract.Aged{Until: r, Bytes: 1}, r-60_000, 64_000)
	}
	if len(history) > 128 {
		t.Errorf("a history has %d pieces", len(history))
	}
}

// TestQuotaOfHistory: a store whose quota bounds its bytes keeps no more of what was replaced,
// though its policy keeps everything. Objects that have not been replaced for long can be watched.
func TestQuotaOfHistory(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, db dbtest.DB) {
		s := open(t, db, mvcc.Config{QuotaInterval: time.Millisecond,
			Compaction: mvcc.CompactionPolicy{Window: -1}})
		b, err := contract.OpenBackend(t.Context(), db.Driver, db.URL, ofStore(t, ""))
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		if err := contract.SetQuota(t.Context(), b, contract.Quota{Bytes: 1000}); err != nil {
			t.Fatal(err)
		}
		r := put(t, s, "/a", 0, string(make([]byte, 300)))
		for end := time.Now().Add(30 * time.Second); s.CompactedRevision() == 0; {
			if time.Now().After(end) {
				t.Fatal("the history is not compacted")
			}
			r = put(t, s, "/a", r, string(make([]byte, 300)))
		}
		for end := time.Now().Add(30 * time.Second); ; {
			g, _, err := b.Growth(t.Context(), s.CompactedRevision())
			if err != nil {
				t.Fatal(err)
			}
			if g.Replaced <= 1000 {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("%d bytes of history are kept", g.Replaced)
			}
		}
	})
}

// TestQuotaOfOldHistory: history that is there when a store is opened counts, and rows count that
// hold next to nothing.
func TestQuotaOfOldHistory(t *testing.T) {
	for name, length := range map[string]int{"long values": 300, "short values": 1} {
		t.Run(name, func(t *testing.T) {
			everywhere(t, func(t *testing.T, db dbtest.DB) {
				config := mvcc.Config{QuotaInterval: time.Millisecond,
					Compaction: mvcc.CompactionPolicy{Window: -1}}
				s := open(t, db, config)
				r := contract.Revision(0)
				for range 10 {
					r = put(t, s, "/a", r, string(make([]byte, length)))
				}
				b := openBackend(t, db)
				defer b.Close()
				if err := contract.SetQuota(t.Context(), b, contract.Quota{Bytes: 1000}); err != nil {
					t.Fatal(err)
				}
				other := open(t, db, config)
				for end := time.Now().Add(30 * time.Second); other.CompactedRevision() < r; {
					if _, err := other.Head(t.Context()); err != nil {
						t.Fatal(err)
					}
					if time.Now().After(end) {
						t.Fatalf("the history is compacted up to revision %d of %d",
							other.CompactedRevision(), r)
					}
				}
				if kv, _, err := other.Get(t.Context(), "/a"); err != nil || kv == nil {
					t.Errorf("the key is %v, %v", kv, err)
				}
			})
		})
	}
}

// TestQuotaOfBytesComesLater: history counts that was there before a quota of objects became one of
// bytes, too.
func TestQuotaOfBytesComesLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := inMemory(t)
		s := open(t, db, mvcc.Config{Compaction: mvcc.CompactionPolicy{Window: -1}})
		r := contract.Revision(0)
		for range 10 {
			r = put(t, s, "/a", r, string(make([]byte, 300)))
		}
		b := openBackend(t, db)
		defer b.Close()
		for _, q := range []contract.Quota{{Objects: 2}, {Objects: 2, Bytes: 1000}} {
			if err := contract.SetQuota(t.Context(), b, q); err != nil {
				t.Fatal(err)
			}
			<-time.After(time.Minute)
			if _, err := s.Head(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := s.CompactedRevision(); (got >= r) != (q.Bytes > 0) {
				t.Errorf("with a quota of %+v the history is compacted up to revision %d of %d", q, got, r)
			}
		}
	})
}

// TestQuota: a process heeds a quota that somebody sets, and what others write; when it is used up,
// creations and growing updates are refused and nothing else; and compaction and a fence do not
// change what is counted.
func TestQuota(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, db dbtest.DB) {
		config := mvcc.Config{QuotaInterval: time.Millisecond}
		s := open(t, db, config)
		other := open(t, db, config)
		limit := func(q contract.Quota) {
			t.Helper()
			b, err := contract.OpenBackend(t.Context(), db.Driver, db.URL, ofStore(t, ""))
			if err != nil {
				t.Fatal(err)
			}
			defer b.Close()
			if err := contract.SetQuota(t.Context(), b, q); err != nil {
				t.Fatal(err)
			}
		}
		try := func(m contract.Mutation) string {
			t.Helper()
			_, err := s.Commit(t.Context(), m)
			return refused(t, err)
		}
		// create creates a key and removes it, until that is answered so.
		create := func(want string) {
			t.Helper()
			for end := time.Now().Add(30 * time.Second); ; {
				r, err := s.Commit(t.Context(), contract.Mutation{Key: "/new", Value: []byte("v")})
				got := refused(t, err)
				if err == nil {
					if _, err := s.Commit(t.Context(), contract.Mutation{Key: "/new", Expect: r,
						Delete: true}); err != nil {
						t.Fatal(err)
					}
				}
				if got == want {
					return
				}
				if time.Now().After(end) {
					t.Fatalf("a creation is answered by %q, want %q", got, want)
				}
			}
		}
		a := put(t, other, "/a", 0, "12345678")
		b := put(t, other, "/b", 0, "12345678")
		create("")
		limit(contract.Quota{Objects: 2})
		create("objects")
		if got := try(contract.Mutation{Key: "/x", Expect: contract.Any, Value: []byte("v")}); got != "objects" {
			t.Errorf("a creation that expects any state: %q", got)
		}
		r, err := s.Commit(t.Context(), contract.Mutation{Key: "/a", Expect: a,
			Value: []byte("longer than before")})
		if err != nil {
			t.Errorf("an update in a store with enough objects: %v", err)
		}
		a = r
		limit(contract.Quota{Bytes: 10})
		create("bytes")
		for what, test := range map[string]struct {
			m    contract.Mutation
			want string
		}{
			"grow": {contract.Mutation{Key: "/b", Expect: b, Value: []byte("123456789")}, "bytes"},
			"grow, with the previous value": {contract.Mutation{Key: "/b", Expect: b, HasPrev: true,
				PrevValue: []byte("12345678"), Value: []byte("123456789")}, "bytes"},
			"grow any": {contract.Mutation{Key: "/b", Expect: contract.Any, Value: []byte("123456789")},
				"bytes"},
		} {
			if got := try(test.m); got != test.want {
				t.Errorf("%s: %q", what, got)
			}
		}
		if got := try(contract.Mutation{Key: "/b", Expect: b, Value: []byte("87654321")}); got != "" {
			t.Errorf("an update of the same size: %q", got)
		}
		if got := try(contract.Mutation{Key: "/b", Expect: contract.Any, Value: []byte("8")}); got != "" {
			t.Errorf("an update to less: %q", got)
		}
		// 2 + 18 and 2 + 1 bytes are left. Another process makes room, but not enough.
		if _, err := other.Fence(t.Context()); err != nil {
			t.Fatal(err)
		}
		create("bytes")
		if _, err := other.Commit(t.Context(), contract.Mutation{Key: "/a", Expect: a,
			Value: []byte("12345")}); err != nil {
			t.Fatal(err)
		}
		head, err := other.Head(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := other.Compact(t.Context(), head); err != nil {
			t.Fatal(err)
		}
		create("bytes")
		if got := try(contract.Mutation{Key: "/a", Expect: contract.Any, Delete: true}); got != "" {
			t.Errorf("a deletion: %q", got)
		}
		create("")
		limit(contract.Quota{})
		put(t, s, "/c", 0, "0123456789")
	})
}

// refused returns what is used up, "" if nothing was refused.
func refused(t *testing.T, err error) string {
	t.Helper()
	var quota *contract.QuotaError
	switch {
	case errors.As(err, &quota) && contract.ClassOf(err) == contract.Full:
		return quota.What
	case err != nil:
		t.Fatal(err)
	}
	return ""
}

// TestQuotaOfLeases: a store with a quota is not filled with leases. To renew them and to give them
// up goes on, and makes room.
func TestQuotaOfLeases(t *testing.T) {
	everywhere(t, func(t *testing.T, db dbtest.DB) {
		b := openBackend(t, db)
		if err := contract.SetQuota(t.Context(), b, contract.Quota{Objects: 40}); err != nil {
			t.Fatal(err)
		}
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		s := open(t, db, mvcc.Config{QuotaInterval: time.Millisecond})
		put(t, s, "/k", 0, "v")
		end := time.Now().Add(30 * time.Second)
		// until is that something is refused, or is not, after the next time that it is measured.
		until := func(want string, do func() error) {
			t.Helper()
			for {
				got := refused(t, do())
				if got == want {
					return
				}
				if time.Now().After(end) {
					t.Fatalf("it is answered by %q, want %q", got, want)
				}
			}
		}
		var leases []contract.Lease
		grant := func() error {
			row, _, err := s.GrantLease(t.Context(), 0, 3600)
			if err == nil {
				leases = append(leases, row.Lease)
			}
			return err
		}
		until("objects", grant)
		if len(leases) < 39 {
			t.Errorf("beside one object %d leases were granted", len(leases))
		}
		create := func() error {
			_, err := s.Commit(t.Context(), contract.Mutation{Key: "/x", Value: []byte("v")})
			return err
		}
		until("objects", create)
		for _, l := range leases {
			_, _, err := s.RenewLease(t.Context(), l)
			if err := errors.Join(err, s.RevokeLease(t.Context(), l)); err != nil {
				t.Fatal(err)
			}
		}
		until("", create)
		until("", grant)

		// A restore brings leases that this process has not granted.
		in := &contract.Import{Store: "elsewhere", Head: 2, Replace: true,
			Records: func(func(*contract.Record) error) error { return nil }}
		for l := range contract.Lease(40) {
			in.Leases = append(in.Leases, contract.LeaseRow{Lease: l + 1, TTL: 3600,
				Expiry: time.Now().Add(time.Hour).UnixMicro()})
		}
		if _, err := open(t, db, mvcc.Config{}).Import(t.Context(), in); err != nil {
			t.Fatal(err)
		}
		end = time.Now().Add(30 * time.Second)
		until("objects", func() error {
			r, err := s.Commit(t.Context(), contract.Mutation{Key: "/y", Value: []byte("v")})
			if err == nil {
				_, err = s.Commit(t.Context(), contract.Mutation{Key: "/y", Expect: r, Delete: true})
			}
			return err
		})
	})
}
