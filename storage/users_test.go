package storage

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/user"
	endpointsrequest "k8s.io/apiserver/pkg/endpoints/request"
	apistorage "k8s.io/apiserver/pkg/storage"

	"github.com/rowkeeper/rowkeeper/storage/internal/test/dbtest"
)

// asUser is the context of a request.
func asUser(t *testing.T, name, id string) context.Context {
	ctx := audit.WithAuditContext(t.Context())
	audit.WithAuditID(ctx, types.UID(id))
	return endpointsrequest.WithUser(ctx, &user.DefaultInfo{Name: name})
}

// TestUsers: of a resource that records them, each write has the user and the audit ID of its
// request. What no request has written has none, and of other resources nothing is recorded.
func TestUsers(t *testing.T) {
	for _, recorded := range []string{"pods", "services"} {
		db, err := Open(t.Context(), Config{URL: "memory:", Migrate: true,
			Drivers: []Driver{dbtest.Driver(dbtest.Memory)},
			Users:   func(r schema.GroupResource) bool { return r.Resource == recorded }})
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		r := pods(t, db)
		const account = "system:serviceaccount:ns:"
		long := account + strings.Repeat("n", 600)
		if err := r.Create(asUser(t, "alice", "1"), podKey("a"), pod("a"), nil, 0); err != nil {
			t.Fatal(err)
		}
		for i, ctx := range []context.Context{asUser(t, "bob", "2"), t.Context(),
			asUser(t, long, strings.Repeat("i", 70)), asUser(t, "nul\x00", ""),
			endpointsrequest.WithUser(t.Context(), &user.DefaultInfo{Name: "unaudited"})} {
			if _, err := label(ctx, r, "a", fmt.Sprint(i)); err != nil {
				t.Fatal(err)
			}
		}
		// An update that changes nothing is not written.
		if _, err := label(asUser(t, "mallory", "m"), r, "a", "4"); err != nil {
			t.Fatal(err)
		}
		if err := r.Delete(asUser(t, "carol", "3"), podKey("a"), &example.Pod{}, nil,
			apistorage.ValidateAllObjectFunc, nil, apistorage.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		page, _, err := pastOf(t, r, History{Earlier: true})
		if err != nil {
			t.Fatal(err)
		}
		of, _, err := pastOf(t, r, History{Name: "a", Earlier: true})
		if err != nil {
			t.Fatal(err)
		}
		want := []string{"carol 3", "unaudited ", "nul\ufffd ",
			long[:509] + "… " + strings.Repeat("i", 61) + "…", " ", "bob 2", "alice 1"}
		if recorded != "pods" {
			want = slices.Repeat([]string{" "}, len(want))
		}
		for _, changes := range [][]Change{page.Changes, of.Changes} {
			var got []string
			for _, c := range changes {
				got = append(got, c.User+" "+c.AuditID)
			}
			if !slices.Equal(got, want) {
				t.Errorf("with the users of %s, they are %q, want %q", recorded, got, want)
			}
		}
		if recorded == "pods" {
			at, _, err := pastOf(t, r, History{Name: "a", At: &Moment{Revision: 3}, Earlier: true})
			if err != nil || len(at.Changes) != 1 || at.Changes[0].User != "bob" {
				t.Errorf("the state at 3 is of %+v, %v", at.Changes, err)
			}
		}
	}
}
