// Package mysql keeps a store in MySQL or MariaDB.
package mysql
