package sqlite

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// TestFull fills a database up to a number of pages: the group that does not fit is refused and
// leaves nothing behind, and everything goes on when there is room again.
func TestFull(t *testing.T) {
	ctx := context.Background()
	store := open(t, fresh(t)).(*backend)
	defer store.Close()
	limit := func(pages int) {
		t.Helper()
		c, err := store.commits.Get(ctx)
		if err != nil {
			t.Fatal(err)
		}
		defer store.commits.Put(c)
		if err := c.Set("max_page_count", fmt.Sprint(pages)); err != nil {
			t.Fatal(err)
		}
	}
	f := filler{store: store, value: bytes.Repeat([]byte("v"), 4000)}
	f.grow(t, 100)
	limit(1) // SQLite makes that as many as there are
	before, err := store.State(ctx)
	if err != nil {
		t.Fatal(err)
	}
	group := func() *contract.Group {
		g := &contract.Group{Token: newToken(), Seen: f.seen}
		for i := range 50 {
			g.Mutations = append(g.Mutations,
				&contract.Mutation{Key: contract.Key(fmt.Sprintf("full/%02d", i)), Value: f.value})
		}
		return g
	}
	_, err = store.Commit(ctx, group())
	oneSentence(t, err, contract.Full, "there is no space left for the database", "make room")
	after, err := store.State(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if after.Head != before.Head {
		t.Errorf("the head was %+v and is %+v", before.Head, after.Head)
	}
	if n, _, err := store.Count(ctx, "full/", "full0", 0, 0); err != nil || n != 0 {
		t.Errorf("%d keys of the refused group are there, %v", n, err)
	}
	limit(1 << 30)
	if r, err := store.Commit(ctx, group()); err != nil || !r.Outcomes[49].Accepted ||
		r.Before != before.Head {
		t.Errorf("after making room: %+v, %v", r, err)
	}
}

// TestFullDisk does the same on a file system of a few megabytes, which a process with a name space
// of its own may mount.
func TestFullDisk(t *testing.T) {
	cmd := command("fulldisk", t.TempDir())
	cmd.Stderr = nil
	if !privateMounts(cmd) {
		t.Skip("this system has no name spaces in which a test may mount a small file system")
	}
	out, err := cmd.CombinedOutput()
	// EPERM and ENOSPC at the start: the system allows no name spaces, or no more of them.
	if bytes.Contains(out, []byte("cannot mount")) || errors.Is(err, syscall.EPERM) ||
		errors.Is(err, syscall.ENOSPC) {
		t.Skipf("a test may not mount a small file system here: %v %s", err, out)
	}
	if err != nil {
		t.Fatalf("%v:\n%s", err, out)
	}
	t.Logf("%s", out)
}

// TestFullDiskHeals fills a disk with history. Compaction makes room again by itself, without an
// administrator, although it has to write for that; and again.
func TestFullDiskHeals(t *testing.T) {
	for name, args := range map[string][]string{"of small values": {"50000", "20"},
		"of large values": {"1000000", "3"}} {
		t.Run(name, func(t *testing.T) {
			cmd := command("healdisk", append([]string{t.TempDir()}, args...)...)
			cmd.Stderr = nil
			if !privateMounts(cmd) {
				t.Skip("this system has no name spaces in which a test may mount a small file system")
			}
			out, err := cmd.CombinedOutput()
			if bytes.Contains(out, []byte("cannot mount")) || errors.Is(err, syscall.EPERM) ||
				errors.Is(err, syscall.ENOSPC) {
				t.Skipf("a test may not mount a small file system here: %v %s", err, out)
			}
			if err != nil {
				t.Fatalf("%v:\n%s", err, out)
			}
			t.Logf("%s", out)
		})
	}
}

// healDiskChild takes a directory, the size of the values and the number of keys.
func healDiskChild(args []string) error {
	dir := args[0]
	size, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	keys, err := strconv.Atoi(args[2])
	if err != nil {
		return err
	}
	if err := mountSmall(dir, 64<<20); err != nil {
		return fmt.Errorf("cannot mount: %w", err)
	}
	ctx := context.Background()
	url := "sqlite://" + dir + "/state.db"
	if _, err := Driver.Migrate(ctx, url, childOptions()); err != nil {
		return err
	}
	b, err := contract.OpenBackend(ctx, Driver, url, childOptions())
	if err != nil {
		return err
	}
	st, err := b.State(ctx)
	if err != nil {
		return err
	}
	seen, revisions := st.Head, make([]contract.Revision, keys)
	// fill writes until the disk is full.
	fill := func() (writes int, err error) {
		for ; writes < 5000; writes++ {
			i := writes % keys
			m := &contract.Mutation{Key: contract.Key(fmt.Sprintf("key/%06d", i)), Expect: revisions[i],
				Value: bytes.Repeat([]byte("v"), size)}
			r, err := b.Commit(ctx, &contract.Group{Token: newToken(), Seen: seen,
				Mutations: []*contract.Mutation{m}})
			if contract.ClassOf(err) == contract.Full && err != nil {
				return writes, nil
			}
			if err != nil {
				return writes, err
			}
			seen, revisions[i] = r.State.Head, r.Outcomes[0].Revision
		}
		return writes, errors.New("the disk is never full")
	}
	first, err := fill()
	if err != nil {
		return err
	}
	for range 3 {
		st, err := contract.RaiseCompacted(ctx, b, seen.Revision)
		deleted := 0
		for err == nil && st.Swept < st.Compacted {
			var n int
			n, st, err = contract.SweepBatch(ctx, b, 500)
			deleted += n
		}
		if err != nil {
			return fmt.Errorf("compaction on a full disk: %w", err)
		}
		again, err := fill()
		if err != nil {
			return err
		}
		if again < first/2 {
			return fmt.Errorf("%d writes filled the disk; after %d rows were removed, %d writes "+
				"were possible", first, deleted, again)
		}
		fmt.Printf("%d writes filled the disk; %d rows were removed; %d writes filled it again\n",
			first, deleted, again)
	}
	return b.Close()
}

func fullDiskChild(args []string) error {
	dir := args[0]
	if err := mountSmall(dir, 6<<20); err != nil {
		return fmt.Errorf("cannot mount: %w", err)
	}
	ctx := context.Background()
	url := "sqlite://" + dir + "/state.db"
	if _, err := Driver.Migrate(ctx, url, childOptions()); err != nil {
		return err
	}
	b, err := contract.OpenBackend(ctx, Driver, url, childOptions())
	if err != nil {
		return err
	}
	st, err := b.State(ctx)
	if err != nil {
		return err
	}
	acknowledged, seen := 0, st.Head
	write := func() error {
		m := &contract.Mutation{Key: contract.Key(fmt.Sprintf("key/%06d", acknowledged)),
			Value: bytes.Repeat([]byte("v"), 20_000)}
		r, err := b.Commit(ctx, &contract.Group{Token: newToken(), Seen: seen,
			Mutations: []*contract.Mutation{m}})
		if err != nil {
			return err
		}
		acknowledged++
		seen = r.State.Head
		return nil
	}
	ballast := dir + "/ballast"
	if err := os.WriteFile(ballast, make([]byte, 2<<20), 0o600); err != nil {
		return err
	}
	for err == nil {
		if err = write(); acknowledged > 1000 {
			return errors.New("the disk is never full")
		}
	}
	if contract.ClassOf(err) != contract.Full ||
		!strings.Contains(err.Error(), "there is no space left for the database "+dir) {
		return fmt.Errorf("with %d writes, class %v: %w", acknowledged, contract.ClassOf(err), err)
	}
	check := func() error {
		n, st, err := b.Count(ctx, "key/", "key0", 0, 0)
		if err != nil {
			return err
		}
		if n != int64(acknowledged) || st.Head != seen {
			return fmt.Errorf("%d keys, want %d; the head is %+v, want %+v", n, acknowledged,
				st.Head, seen)
		}
		return nil
	}
	for range 5 {
		if err := write(); contract.ClassOf(err) != contract.Full || err == nil {
			return fmt.Errorf("a write on a full disk: %w", err)
		}
		if err := check(); err != nil {
			return err
		}
	}
	before := acknowledged
	if err := os.Remove(ballast); err != nil {
		return err
	}
	for range 5 {
		if err := write(); err != nil {
			return fmt.Errorf("after making room: %w", err)
		}
	}
	if err := check(); err != nil {
		return err
	}
	if err := b.Close(); err != nil {
		return err
	}
	if b, err = contract.OpenBackend(ctx, Driver, url, childOptions()); err != nil {
		return err
	}
	if err := check(); err != nil {
		return err
	}
	fmt.Printf("%d writes filled the disk, %d more when there was room\n", before,
		acknowledged-before)
	return b.Close()
}
