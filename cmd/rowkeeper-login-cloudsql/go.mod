module github.com/rowkeeper/rowkeeper/cmd/rowkeeper-login-cloudsql

go 1.26.0

require golang.org/x/oauth2 v0.38.0

require cloud.google.com/go/compute/metadata v0.3.0 // indirect
