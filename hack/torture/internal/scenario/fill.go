package scenario

import (
	"context"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"

	"github.com/rowkeeper/rowkeeper/pkg/example/apis/ci"
	"github.com/rowkeeper/rowkeeper/pkg/example/apis/ci/install"
	civ1 "github.com/rowkeeper/rowkeeper/pkg/example/apis/ci/v1"
	"github.com/rowkeeper/rowkeeper/storage"
	"github.com/rowkeeper/rowkeeper/storage/drivers"
)

// refused tells whether nothing was written for now, because the database is slow.
func refused(err error) bool {
	_, later := apierrors.SuggestsClientDelay(err)
	return later
}

// fill writes runs of pipelines by the library, beside the servers, since by HTTP it would take an
// hour. Each has an annotation of so many bytes, and expires after so many seconds (0: never).
func (e *Env) fill(ctx context.Context, count, size int, ttl uint64) error {
	scheme := runtime.NewScheme()
	install.Install(scheme)
	db, err := storage.Open(ctx, storage.Config{URL: e.DB.Direct(), Drivers: drivers.All(),
		Store: e.store()})
	if err != nil {
		return err
	}
	defer db.Close()
	store, destroy, err := db.Resource(storage.ResourceConfig{
		Codec:          serializer.NewCodecFactory(scheme).LegacyCodec(civ1.SchemeGroupVersion),
		NewFunc:        func() runtime.Object { return &ci.PipelineRun{} },
		Prefix:         e.prefix(),
		ResourcePrefix: "/ci.rowkeeper.dev/pipelineruns",
		GroupResource:  schema.GroupResource{Group: ci.GroupName, Resource: "pipelineruns"},
	})
	if err != nil {
		return err
	}
	defer destroy()
	group, ctx := errgroup.WithContext(ctx)
	const writers = 256
	ballast := strings.Repeat("x", size)
	for w := range writers {
		group.Go(func() error {
			for n := w; n < count; n += writers {
				name := fmt.Sprintf("r%07d", n)
				run := &ci.PipelineRun{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "big",
					UID: types.UID(name)}, Spec: ci.PipelineRunSpec{PipelineName: "p"}}
				if size > 0 {
					run.Annotations = map[string]string{"torture.rowkeeper.dev/ballast": ballast}
				}
				err := store.Create(ctx, "/ci.rowkeeper.dev/pipelineruns/big/"+name, run, nil, ttl)
				for refused(err) && ctx.Err() == nil {
					Wait(ctx, 100*time.Millisecond)
					err = store.Create(ctx, "/ci.rowkeeper.dev/pipelineruns/big/"+name,
						run, nil, ttl)
				}
				if err != nil {
					return err
				}
			}
			return nil
		})
	}
	return group.Wait()
}
