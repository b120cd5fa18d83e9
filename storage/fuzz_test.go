package storage

import (
	"errors"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/apis/example"
	apistorage "k8s.io/apiserver/pkg/storage"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
)

// FuzzKey: the database key of anything is below the resource, or there is none.
func FuzzKey(f *testing.F) {
	for _, seed := range []string{"/pods/ns/name", "/pods", "/pods/", "pods/x",
		"/pods/../secrets/x", "/pods/./x", "/pods//x", "/podsx/y", "", "/", "/pods/\x00",
		"/pods/\xff", "/pods/ns/..", "/pods/a/b/c/d"} {
		f.Add(seed, false)
		f.Add(seed, true)
	}
	keys, err := newKeySpace("/registry", "/pods")
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, key string, recursive bool) {
		got, err := keys.prepare(key, recursive)
		if err != nil {
			return
		}
		if !strings.HasPrefix(string(got), "/registry/pods") ||
			strings.Contains(string(got), "/../") || strings.HasSuffix(string(got), "/..") {
			t.Errorf("%q becomes %q", key, string(got))
		}
	})
}

// FuzzList: a list with any continue token, made from its parts or given as it is, and any
// resourceVersion, has only what is below its key, or fails with an error that is the client's.
func FuzzList(f *testing.F) {
	store := memory(f)
	r := pods(f, store)
	for _, name := range []string{"a", "b", "c"} {
		create(f, r, pod(name))
	}
	elsewhere := podConfig()
	elsewhere.ResourcePrefix = "/secrets"
	secret := pod("hidden")
	secret.Namespace = "secret"
	if err := open(f, store, elsewhere).Create(f.Context(), "/secrets/ns/hidden", secret, nil,
		0); err != nil {
		f.Fatal(err)
	}
	token, err := apistorage.EncodeContinue("/registry/pods/ns/b", "/registry/pods/", 3)
	if err != nil {
		f.Fatal(err)
	}
	for _, start := range []string{"ns/b\x00", "../secrets/ns/a", "", "/", "\x00", "\xff",
		"ns/../../secrets/"} {
		f.Add("", start, int64(3), "", int64(1), "")
		f.Add("", start, int64(-1), "", int64(0), "")
	}
	f.Add(token, "", int64(0), "", int64(1), "")
	f.Add("e30", "", int64(0), "", int64(1), "")
	for _, revision := range []string{"0", "1", "4", "-1", "x", "9223372036854775807",
		"9223372036854775808", "18446744073709551615", "1e3", " 1", "00"} {
		f.Add("", "", int64(0), revision, int64(2), "Exact")
		f.Add("", "", int64(0), revision, int64(0), "NotOlderThan")
		f.Add("", "", int64(0), revision, int64(-1), "")
	}
	f.Fuzz(func(t *testing.T, token, start string, at int64, revision string, limit int64,
		match string) {
		if token == "" && start != "" {
			var err error
			if token, err = apistorage.EncodeContinue("/registry/pods/"+start, "/registry/pods/",
				at); err != nil {
				return
			}
		}
		opts := everything(revision)
		opts.ResourceVersionMatch = metav1.ResourceVersionMatch(match)
		opts.Predicate.Limit, opts.Predicate.Continue = limit, token
		list := &example.PodList{}
		err := r.GetList(t.Context(), "/pods/", opts, list)
		var status apierrors.APIStatus
		switch {
		case err == nil:
			for _, p := range list.Items {
				if p.Namespace != "ns" {
					t.Errorf("%q lists %s/%s", token, p.Namespace, p.Name)
				}
			}
		case errors.As(err, &status) && status.Status().Code >= 500 &&
			!apistorage.IsTooLargeResourceVersion(err):
			t.Errorf("token %q, resourceVersion %q, match %q, limit %d: %v", token, revision, match,
				limit, err)
		case !errors.As(err, &status):
			var known *contract.Error
			if errors.As(err, &known) {
				t.Errorf("token %q, resourceVersion %q, match %q, limit %d: an error of the "+
					"database: %v", token, revision, match, limit, err)
			}
		}
	})
}
