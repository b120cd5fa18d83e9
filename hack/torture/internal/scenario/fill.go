package scenario

import (
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"

	"github.com/rowkeeper/rowkeeper/pkg/apis/ci"
	"github.com/rowkeeper/rowkeeper/pkg/apis/ci/install"
	civ1 "github.com/rowkeeper/rowkeeper/pkg/apis/ci/v1"
	"github.com/rowkeeper/rowkeeper/storage"
	"github.com/rowkeeper/rowkeeper/storage/mysql"
	"github.com/rowkeeper/rowkeeper/storage/postgres"
	"github.com/rowkeeper/rowkeeper/storage/sqlite"
)

// fill writes runs of pipelines by the library, beside the servers, since by HTTP it would take an hour.
func fill(ctx context.Context, url, prefix string, count int) error {
	scheme := runtime.NewScheme()
	install.Install(scheme)
	db, err := storage.Open(ctx, storage.Config{URL: url, Drivers: []storage.Driver{sqlite.Driver, postgres.Driver, mysql.Driver}})
	if err != nil {
		return err
	}
	defer db.Close()
	store, destroy, err := db.NewStore(storage.StoreConfig{
		Codec:          serializer.NewCodecFactory(scheme).LegacyCodec(civ1.SchemeGroupVersion),
		NewFunc:        func() runtime.Object { return &ci.PipelineRun{} },
		NewListFunc:    func() runtime.Object { return &ci.PipelineRunList{} },
		Prefix:         prefix,
		ResourcePrefix: "/ci.rowkeeper.dev/pipelineruns",
		GroupResource:  schema.GroupResource{Group: ci.GroupName, Resource: "pipelineruns"},
	})
	if err != nil {
		return err
	}
	defer destroy()
	group, ctx := errgroup.WithContext(ctx)
	const writers = 256
	for w := range writers {
		group.Go(func() error {
			for n := w; n < count; n += writers {
				name := fmt.Sprintf("r%07d", n)
				run := &ci.PipelineRun{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "big", UID: types.UID(name)}, Spec: ci.PipelineRunSpec{PipelineName: "p"}}
				if err := store.Create(ctx, "/ci.rowkeeper.dev/pipelineruns/big/"+name, run, nil, 0); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return group.Wait()
}
