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

// CountKeys counts the keys from one key on and before another, in whatever store they are. It sees
// whatever was acknowledged before the call, by any process, and reads no value.
func (s *Store) CountKeys(ctx context.Context, from, before string) (int64, error) {
	all := int64(0)
	for _, s := range s.all() {
		n, err := s.mvcc.Count(ctx, contract.Key(from), contract.Key(before))
		if err != nil {
			return 0, fmt.Errorf("cannot count the keys from %s on: %w", from, err)
		}
		all += n
	}
	return all, nil
}

// KeyRevision returns the revision at which a key was written last, 0 if it does not exist, in
// whatever store of Config.StoreFor it is. It sees whatever was acknowledged before the call, by
// any process, and reads no value.
func (s *Store) KeyRevision(ctx context.Context, key string) (int64, error) {
	for _, s := range s.all() {
		r, err := s.mvcc.Range(ctx, mvcc.RangeOptions{
			Start: contract.Key(key), End: contract.Key(key + "\x00"), Limit: 1, KeysOnly: true,
		})
		if err != nil {
			return 0, fmt.Errorf("cannot read the revision of %s: %w", key, err)
		}
		if len(r.KVs) > 0 {
			return int64(r.KVs[0].Revision), nil
		}
	}
	return 0, nil
}
