package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"

	"go.etcd.io/etcd/tests/v3/robustness/model"

	"github.com/rowkeeper/rowkeeper/hack/torture/internal/rows"
)

// keeping lets a database keep what its log has lost to compaction: triggers copy each row of the
// log, and note each new boundary, in the transaction that writes it. All of these have the commit
// lock, so n is the order of the commits.
var keeping = map[string][]string{
	"sqlite": {
		`CREATE TABLE IF NOT EXISTS kept (n INTEGER PRIMARY KEY AUTOINCREMENT, store INTEGER,
			revision INTEGER, name BLOB, value BLOB, deleted INTEGER, compacted INTEGER) STRICT`,
		`CREATE TRIGGER IF NOT EXISTS kept_log AFTER INSERT ON rowkeeper_log BEGIN
			INSERT INTO kept (store, revision, name, value, deleted)
			VALUES (1, NEW.revision, NEW.key, NEW.value, NEW.deleted);
		END`,
		`CREATE TRIGGER IF NOT EXISTS kept_compaction AFTER UPDATE ON rowkeeper_store
			WHEN NEW.compacted <> OLD.compacted BEGIN
			INSERT INTO kept (store, compacted) VALUES (1, NEW.compacted);
		END`,
	},
	"postgres": {
		`CREATE TABLE IF NOT EXISTS kept (n bigserial PRIMARY KEY, store integer, revision bigint,
			name bytea, value bytea, deleted boolean, compacted bigint)`,
		`CREATE OR REPLACE FUNCTION kept_log() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			INSERT INTO kept (store, revision, name, value, deleted)
			VALUES (NEW.store, NEW.revision, NEW.key, NEW.value, NEW.deleted);
			RETURN NULL;
		END $$`,
		`CREATE OR REPLACE FUNCTION kept_compaction() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			INSERT INTO kept (store, compacted) VALUES (NEW.id, NEW.compacted);
			RETURN NULL;
		END $$`,
		`CREATE OR REPLACE TRIGGER kept_log AFTER INSERT ON rowkeeper_log
			FOR EACH ROW EXECUTE FUNCTION kept_log()`,
		`CREATE OR REPLACE TRIGGER kept_compaction AFTER UPDATE ON rowkeeper_store FOR EACH ROW
			WHEN (NEW.compacted <> OLD.compacted) EXECUTE FUNCTION kept_compaction()`,
	},
	"mysql": {
		"CREATE TABLE IF NOT EXISTS kept (n BIGINT AUTO_INCREMENT PRIMARY KEY, store INT, " +
			"revision BIGINT, name VARBINARY(1024), value LONGBLOB, deleted BOOLEAN, compacted BIGINT)",
		"DROP TRIGGER IF EXISTS kept_log",
		"CREATE TRIGGER kept_log AFTER INSERT ON rowkeeper_log FOR EACH ROW " +
			"INSERT INTO kept (store, revision, name, value, deleted) " +
			"VALUES (NEW.store, NEW.revision, NEW.`key`, NEW.value, NEW.deleted)",
		"DROP TRIGGER IF EXISTS kept_compaction",
		"CREATE TRIGGER kept_compaction AFTER UPDATE ON rowkeeper_store FOR EACH ROW " +
			"INSERT INTO kept (store, compacted) " +
			"SELECT NEW.id, NEW.compacted FROM DUAL WHERE NEW.compacted <> OLD.compacted",
	},
}

// history is the log of a store, as the database keeps it from the call of keep on.
type history struct {
	db    *rows.DB
	kind  string
	store string
}

// keep begins to keep the log of a store that has no rows yet.
func keep(ctx context.Context, rawURL, store string) (*history, error) {
	u, err := url.Parse(rawURL)
	if err != nil {
		return nil, err
	}
	h := &history{kind: u.Scheme, store: store}
	if h.kind == "postgresql" {
		h.kind = "postgres"
	}
	if h.db, err = rows.Open(rawURL, "", store); err != nil {
		return nil, err
	}
	for _, statement := range keeping[h.kind] {
		if _, err := h.db.ExecContext(ctx, statement); err != nil {
			return nil, errors.Join(fmt.Errorf("keep the log by %q: %w", statement, err), h.Close())
		}
	}
	return h, nil
}

// Close ends the connections.
func (h *history) Close() error { return h.db.Close() }

// requests are the writes and the compactions in the order of their commits, as etcd's log would
// have them.
func (h *history) requests(ctx context.Context) (requests []model.EtcdRequest, err error) {
	of := "1"
	if h.kind != "sqlite" {
		of = fmt.Sprintf("(SELECT id FROM rowkeeper_store WHERE name = '%s')", h.store)
	}
	kept, err := h.db.QueryContext(ctx, "SELECT revision, name, value, deleted, compacted FROM kept "+
		"WHERE store = "+of+" ORDER BY n")
	if err != nil {
		return nil, err
	}
	defer kept.Close()
	head := int64(1)
	for kept.Next() {
		var (
			revision, compacted sql.NullInt64
			deleted             sql.NullBool
			key, value          []byte
		)
		if err := kept.Scan(&revision, &key, &value, &deleted, &compacted); err != nil {
			return nil, err
		}
		if compacted.Valid {
			requests = append(requests, model.EtcdRequest{Type: model.Compact,
				Compact: &model.CompactRequest{Revision: compacted.Int64}})
			continue
		}
		if revision.Int64 == 1 {
			continue // the row with which a store begins
		}
		if head++; revision.Int64 != head || len(key) == 0 {
			return nil, fmt.Errorf("the log has revision %d where %d should follow: nothing of this "+
				"run may fence the history", revision.Int64, head)
		}
		requests = append(requests, write(string(key), string(value), deleted.Bool))
	}
	return requests, kept.Err()
}

// write is a write that has nothing to compare, since it is done.
func write(key, value string, deleted bool) model.EtcdRequest {
	op := model.EtcdOperation{Type: model.PutOperation,
		Put: model.PutOptions{Key: key, Value: model.ToValueOrHash(value)}}
	if deleted {
		op = model.EtcdOperation{Type: model.DeleteOperation, Delete: model.DeleteOptions{Key: key}}
	}
	return model.EtcdRequest{Type: model.Txn,
		Txn: &model.TxnRequest{OperationsOnSuccess: []model.EtcdOperation{op}}}
}
