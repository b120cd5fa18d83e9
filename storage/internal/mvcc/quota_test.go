package mvcc_test

import (
	"errors"
	"testing"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/dbtest"
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
)

// TestExcess: what a store has reached of its quota decides what is refused.
func TestExcess(t *testing.T) {
	bytes, objects := mvcc.Quota{Bytes: 9}, mvcc.Quota{Objects: 9}
	for name, test := range map[string]struct {
		quota   mvcc.Quota
		usage   mvcc.Usage
		creates bool
		growth  int
		want    string
	}{
		"no quota":        {mvcc.Quota{}, mvcc.Usage{Objects: 9, Bytes: 9}, true, 9, ""},
		"fewer bytes":     {bytes, mvcc.Usage{Objects: 9, Bytes: 8}, true, 9, ""},
		"fewer objects":   {objects, mvcc.Usage{Objects: 8, Bytes: 9}, true, 9, ""},
		"objects, create": {objects, mvcc.Usage{Objects: 9, Bytes: 9}, true, 0, "objects"},
		"objects, grow":   {objects, mvcc.Usage{Objects: 9, Bytes: 9}, false, 9, ""},
		"bytes, create":   {bytes, mvcc.Usage{Objects: 9, Bytes: 9}, true, 0, "bytes"},
		"bytes, grow":     {bytes, mvcc.Usage{Objects: 9, Bytes: 10}, false, 1, "bytes"},
		"bytes, keep":     {bytes, mvcc.Usage{Objects: 9, Bytes: 10}, false, 0, ""},
		"bytes, shrink":   {bytes, mvcc.Usage{Objects: 9, Bytes: 10}, false, -1, ""},
	} {
		var err error
		if e := mvcc.ExcessOf(test.quota, test.usage); e != nil {
			err = e.Refuses(test.creates, test.growth)
		}
		var got string
		var quota *mvcc.QuotaError
		if errors.As(err, &quota) {
			got = quota.What
		}
		if got != test.want || (err == nil) != (test.want == "") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestQuota: a process heeds a quota that somebody sets, and what others write; when it is used up,
// creations and growing updates are refused and nothing else; and compaction and a fence do not
// change what is counted.
func TestQuota(t *testing.T) {
	dbtest.Each(t, func(t *testing.T, db dbtest.DB) {
		config := mvcc.Config{QuotaInterval: time.Millisecond}
		s := open(t, db, config)
		other := open(t, db, config)
		limit := func(q mvcc.Quota) {
			t.Helper()
			b, err := mvcc.OpenBackend(t.Context(), db.Driver, db.URL, ofStore(t, ""))
			if err != nil {
				t.Fatal(err)
			}
			defer b.Close()
			if err := mvcc.SetQuota(t.Context(), b, q); err != nil {
				t.Fatal(err)
			}
		}
		try := func(m mvcc.Mutation) string {
			t.Helper()
			_, err := s.Commit(t.Context(), m)
			return refused(t, err)
		}
		// create creates a key and removes it, until that is answered so.
		create := func(want string) {
			t.Helper()
			for end := time.Now().Add(30 * time.Second); ; {
				r, err := s.Commit(t.Context(), mvcc.Mutation{Key: "/new", Value: []byte("v")})
				got := refused(t, err)
				if err == nil {
					if _, err := s.Commit(t.Context(), mvcc.Mutation{Key: "/new", Expect: r,
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
		limit(mvcc.Quota{Objects: 2})
		create("objects")
		if got := try(mvcc.Mutation{Key: "/x", Expect: mvcc.Any, Value: []byte("v")}); got != "objects" {
			t.Errorf("a creation that expects any state: %q", got)
		}
		r, err := s.Commit(t.Context(), mvcc.Mutation{Key: "/a", Expect: a,
			Value: []byte("longer than before")})
		if err != nil {
			t.Errorf("an update in a store with enough objects: %v", err)
		}
		a = r
		limit(mvcc.Quota{Bytes: 10})
		create("bytes")
		for what, test := range map[string]struct {
			m    mvcc.Mutation
			want string
		}{
			"grow": {mvcc.Mutation{Key: "/b", Expect: b, Value: []byte("123456789")}, "bytes"},
			"grow, with the previous value": {mvcc.Mutation{Key: "/b", Expect: b, HasPrev: true,
				PrevValue: []byte("12345678"), Value: []byte("123456789")}, "bytes"},
			"grow any": {mvcc.Mutation{Key: "/b", Expect: mvcc.Any, Value: []byte("123456789")},
				"bytes"},
		} {
			if got := try(test.m); got != test.want {
				t.Errorf("%s: %q", what, got)
			}
		}
		if got := try(mvcc.Mutation{Key: "/b", Expect: b, Value: []byte("87654321")}); got != "" {
			t.Errorf("an update of the same size: %q", got)
		}
		if got := try(mvcc.Mutation{Key: "/b", Expect: mvcc.Any, Value: []byte("8")}); got != "" {
			t.Errorf("an update to less: %q", got)
		}
		// 2 + 18 and 2 + 1 bytes are left. Another process makes room, but not enough.
		if _, err := other.Fence(t.Context()); err != nil {
			t.Fatal(err)
		}
		create("bytes")
		if _, err := other.Commit(t.Context(), mvcc.Mutation{Key: "/a", Expect: a,
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
		if got := try(mvcc.Mutation{Key: "/a", Expect: mvcc.Any, Delete: true}); got != "" {
			t.Errorf("a deletion: %q", got)
		}
		create("")
		limit(mvcc.Quota{})
		put(t, s, "/c", 0, "0123456789")
	})
}

// refused returns what is used up, "" if nothing was refused.
func refused(t *testing.T, err error) string {
	t.Helper()
	var quota *mvcc.QuotaError
	switch {
	case errors.As(err, &quota) && mvcc.ClassOf(err) == mvcc.Full:
		return quota.What
	case err != nil:
		t.Fatal(err)
	}
	return ""
}
