package database

import (
	"context"
	"fmt"

	"github.com/rowkeeper/rowkeeper/storage/internal/inspect"
)

// Status reads what uses the database, how large it is, and how far its history has come. It opens
// no store, writes nothing and takes no lock that a writer needs.
func Status(ctx context.Context, c Config) (status *inspect.Status, err error) {
	err = c.inspect(ctx, func(db *inspect.Database) error {
		status, err = inspect.Look(ctx, db)
		return err
	})
	return status, err
}

// Examine checks all that Rowkeeper relies on. It opens no store, writes no row and takes no lock
// that a writer needs.
func Examine(ctx context.Context, c Config, o inspect.Options) (report *inspect.Report, err error) {
	err = c.inspect(ctx, func(db *inspect.Database) error {
		report, err = inspect.Examine(ctx, db, o)
		return err
	})
	return report, err
}

func (c Config) inspect(ctx context.Context, f func(*inspect.Database) error) error {
	c = c.withDefaults()
	driver, err := c.driver()
	if err != nil {
		return err
	}
	inspector, ok := driver.(inspect.Driver)
	if !ok {
		return fmt.Errorf("the driver %s cannot look at its databases", driver.Name())
	}
	return inspector.Inspect(ctx, c.URL, c.driverOptions(), f)
}
