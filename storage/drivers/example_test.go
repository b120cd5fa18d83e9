package drivers_test

import (
	"fmt"

	"github.com/rowkeeper/rowkeeper/storage/drivers"
)

// A program that serves every kind of database passes the whole list to storage.Open.
func ExampleAll() {
	for _, driver := range drivers.All() {
		fmt.Println(driver.Name())
	}
	// Output:
	// sqlite
	// postgres
	// mysql
}
