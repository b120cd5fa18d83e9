package database

import (
	"context"
	"fmt"

	"github.com/rowkeeper/rowkeeper/storage/internal/contract"
	"github.com/rowkeeper/rowkeeper/storage/internal/mvcc"
)

// FirstKey returns the first key from one key on and before another, "" if there is none, in
// whatever store it is. It sees whatever was acknowledged before the call, by any process.
func (s *Store) FirstKey(ctx context.Context, from, before string) (string, error) {
	first := ""
	for _, s := range s.all() {
		r, err := s.mvcc.Range(ctx, mvcc.RangeOptions{
			Start: contract.Key(from), End: contract.Key(before), Limit: 1, KeysOnly: true,
		})
		if err != nil {
			return "", fmt.Errorf("cannot read the keys from %s on: %w", from, err)
		}
		if len(r.KVs) > 0 && (first == "" || string(r.KVs[0].Key) < first) {
			first = string(r.KVs[0].Key)
		}
	}
	return first, nil
}
