//go:build upstream

package etcdtests

// These have all that etcd's tests import, for go.mod. Nothing is built with the tag upstream.
import (
	_ "go.etcd.io/etcd/tests/v3/common"
	_ "go.etcd.io/etcd/tests/v3/framework"
	_ "go.etcd.io/etcd/tests/v3/integration/clientv3"
	_ "go.etcd.io/etcd/tests/v3/integration/clientv3/connectivity"
	_ "go.etcd.io/etcd/tests/v3/integration/clientv3/lease"
)
