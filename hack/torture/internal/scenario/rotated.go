package scenario

import (
	"context"
	"errors"
	"time"

	"github.com/rowkeeper/rowkeeper/hack/torture/internal/database"
)

func openRotating(ctx context.Context, e *Env) (database.Database, error) {
	return database.NewRotating(ctx, e.Kind, e.ways(), e.Dir)
}

// passwordRotated changes the password in the database and in the files of the servers, in either
// order, and ends all connections in between: no server can log in until both are done, and then
// with the new password only.
func passwordRotated(ctx context.Context, e *Env) error {
	db := e.DB.(*database.Rotating)
	old := db.Next()
	steps := []func() error{db.Write, func() error { return db.Alter(ctx) }}
	if e.Rand.IntN(2) == 0 {
		steps[0], steps[1] = steps[1], steps[0]
	}
	if err := steps[0](); err != nil {
		return err
	}
	if err := e.Rows.EndOthers(ctx); err != nil {
		return err
	}
	for i := range e.Servers {
		err := until(ctx, 30*time.Second, func(ctx context.Context) error {
			if e.ready(i)(ctx) == nil {
				return errors.New("it is ready")
			}
			return nil
		})
		if err != nil && ctx.Err() == nil {
			e.Fail("rotated", "server %d, whose password is wrong: %v", i, err)
		}
	}
	e.Hold(ctx, 500*time.Millisecond, 20*time.Second)
	if err := steps[1](); err != nil {
		return err
	}
	if db.Takes(ctx, old) {
		return errors.New("the database takes the old password, and so this shows nothing")
	}
	return nil
}
