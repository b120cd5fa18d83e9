package garbagecollector

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-logr/logr"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	apistorage "k8s.io/apiserver/pkg/storage"
	storeerrors "k8s.io/apiserver/pkg/storage/errors"
	typedcoordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/rowkeeper/rowkeeper/pkg/internal/reserved"
	"github.com/rowkeeper/rowkeeper/pkg/internal/unserved"
	"github.com/rowkeeper/rowkeeper/pkg/options"
	"github.com/rowkeeper/rowkeeper/storage"
)

// lockName is the name of the Lease.
const lockName = "garbage-collector"

// locks is how the lock is stored. It is no secret, and no rotation of keys would reach it.
var locks = unserved.Kind{
	Resource:    reserved.Locks,
	Version:     coordinationv1.SchemeGroupVersion,
	AddToScheme: coordinationv1.AddToScheme,
	New:         func() runtime.Object { return &coordinationv1.Lease{} },
	NewList:     func() runtime.Object { return &coordinationv1.LeaseList{} },
	Plain:       true,
}

// NewLock makes the lock by which one of the replicas of a server is elected: client-go's lock, on
// a Lease that is stored besides the server's objects. It is not one of the Leases that a server
// may serve, since some servers serve none, and all replicas have to use the same one. The options
// were applied to the configuration. The function releases what the lock holds.
func NewLock(stored *options.StorageOptions, c *genericapiserver.Config, db *storage.Store,
	holder string) (resourcelock.Interface, func(), error) {
	store, destroy, err := locks.Open(stored, c, db)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot store the garbage collector's lock: %w", err)
	}
	return &resourcelock.LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Name: lockName},
		Client:     leases{store: store},
		LockConfig: resourcelock.ResourceLockConfig{Identity: holder},
	}, destroy, nil
}

// electionLog passes on what an election logs, without the errors of a database that does not
// answer: the storage tells of them once, and an election would at each of its attempts.
type electionLog struct{ logr.LogSink }

func (l electionLog) Error(err error, message string, values ...any) {
	if apierrors.IsServiceUnavailable(err) || errors.Is(err, context.Canceled) {
		return
	}
	l.LogSink.Error(err, message, values...)
}

// leases are the client of the lock. It does what the lock needs.
type leases struct {
	typedcoordinationv1.LeaseInterface
	store apistorage.Interface
}

var _ typedcoordinationv1.LeasesGetter = leases{}

// Leases returns the client itself: the lock is in no namespace.
func (l leases) Leases(string) typedcoordinationv1.LeaseInterface { return l }

func (l leases) Get(ctx context.Context, name string,
	_ metav1.GetOptions) (*coordinationv1.Lease, error) {
	lease := &coordinationv1.Lease{}
	err := l.store.Get(ctx, locks.Key(name), apistorage.GetOptions{}, lease)
	return lease, storeerrors.InterpretGetError(err, reserved.Locks, name)
}

func (l leases) Create(ctx context.Context, lease *coordinationv1.Lease,
	_ metav1.CreateOptions) (*coordinationv1.Lease, error) {
	rest.FillObjectMetaSystemFields(lease)
	created := &coordinationv1.Lease{}
	err := l.store.Create(ctx, locks.Key(lease.Name), lease, created, 0)
	return created, storeerrors.InterpretCreateError(err, reserved.Locks, lease.Name)
}

func (l leases) Update(ctx context.Context, lease *coordinationv1.Lease,
	_ metav1.UpdateOptions) (*coordinationv1.Lease, error) {
	updated := &coordinationv1.Lease{}
	err := l.store.GuaranteedUpdate(ctx, locks.Key(lease.Name), updated, false, nil,
		apistorage.SimpleUpdate(func(existing runtime.Object) (runtime.Object, error) {
			now := existing.(*coordinationv1.Lease)
			if now.ResourceVersion != lease.ResourceVersion {
				return nil, apierrors.NewConflict(reserved.Locks, lease.Name,
					fmt.Errorf("another replica has changed it"))
			}
			now.Spec = lease.Spec
			return now, nil
		}), nil)
	return updated, storeerrors.InterpretUpdateError(err, reserved.Locks, lease.Name)
}
