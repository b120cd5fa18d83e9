package storage

import (
	"sync"

	apistorage "k8s.io/apiserver/pkg/storage"
	etcdfeature "k8s.io/apiserver/pkg/storage/feature"
)

// consistentReads answers the watch caches' question whether the storage can report a watch's
// progress on request, without which they serve no consistent read. Rowkeeper always can.
// Everything else is asked of upstream's checker, which learns from etcd clients.
//
// There is one such checker for the process. Where some resources are in etcd, one that is older
// than 3.4.31 or 3.5.13 does not report progress; the consistent lists of its resources then wait
// for three seconds before they are read from etcd.
type consistentReads struct {
	etcdfeature.FeatureSupportChecker
}

func (c consistentReads) Supports(feature apistorage.Feature) bool {
	return feature == apistorage.RequestWatchProgress || c.FeatureSupportChecker.Supports(feature)
}

// supportConsistentReads installs the checker, once. The variable is upstream's, and not protected:
// watch caches read it from when they are created on. So it is set when the first database is
// opened, which has to be before.
func supportConsistentReads() {
	installOnce.Do(func() {
		etcdfeature.DefaultFeatureSupportChecker = consistentReads{etcdfeature.DefaultFeatureSupportChecker}
	})
}

var installOnce sync.Once
