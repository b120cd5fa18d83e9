//go:build !race

// The timers of so many stores in one bubble of testing/synctest break the race detector itself, in
// about one of twelve runs (https://go.dev/issue/78156). The other tests of polls run with it.

package mvcc_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
	"github.com/rowkeeper/rowkeeper/storage/internal/test/memdb"
)

// TestIdleStoresCostNothing: stores that are open and idle cost as many statements as one of them,
// be they opened together or one after the other, with a quota or without.
func TestIdleStoresCostNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		idle := func(n int) int64 {
			l := &line{}
			var stores []*mvcc.Engine
			for i := range n {
				db := memdb.New(fmt.Sprint("store", i), time.Now)
				if i%3 == 0 {
					if err := contract.SetQuota(t.Context(), db.Open(contract.DriverOptions{}),
						contract.Quota{Objects: 100}); err != nil {
						t.Fatal(err)
					}
				}
				s := openOn(t, l, db, mvcc.Config{PollActive: 100 * time.Millisecond,
					PollIdle: time.Second})
				put(t, s, "/k", 0, "v")
				stores = append(stores, s)
				<-time.After(37 * time.Millisecond)
			}
			<-time.After(4 * time.Minute) // they have been compacted, and measured
			before := l.statements.Load()
			<-time.After(4 * time.Minute)
			statements := l.statements.Load() - before
			closeAll(t, stores...)
			return statements
		}
		one, many := idle(1), idle(150)
		// The polls, and the size of the tables each minute.
		if most := 4*60 + 15; one > int64(most) {
			t.Errorf("a store cost %d statements in four minutes, more than %d", one, most)
		}
		// Of 150 stores, not all can be asked at once what expires next. That is done each half
		// minute. The size is asked for each minute by one store, and by 150 a little earlier.
		if many > one+8+3 {
			t.Errorf("150 stores cost %d statements in four minutes, and one store %d", many, one)
		}
	})
}
