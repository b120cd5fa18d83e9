package main

// A container image has nothing but the program.
import (
	_ "time/tzdata" // time zones, for the environment variable TZ

	_ "golang.org/x/crypto/x509roots/fallback" // certificate authorities, where the system has none
)
