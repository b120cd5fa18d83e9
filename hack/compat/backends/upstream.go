//go:build upstream

package backends

// The tests of these packages run here, so go.mod has all that they import. Nothing is built with
// the tag upstream.
import (
	_ "github.com/cilium/cilium/pkg/kvstore"
	_ "github.com/cilium/cilium/pkg/kvstore/allocator"
	_ "github.com/cilium/cilium/pkg/kvstore/store"
)
